"""The gateway's annotations, and errors of invalid values."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from gateway.cards.values import CardValues
from gateway.stores.kubernetes.annotations import Annotations, BadAnnotation, port_of


def read(**annotations: str) -> Annotations:
    return Annotations.read(
        {f"tito-gateway/{name.replace('_', '-')}": value for name, value in annotations.items()}
    )


def test_all_annotations_are_parsed() -> None:
    """Of other prefixes none, and of an unknown one its name, for the log."""
    values = {
        "scheme": "HTTPS",
        "format": " sglang ",
        "model": "org/Model-7B",
        "worker_type": "prefill",
        "bootstrap_port": "8998",
        "priority": "-3",
        "vocab_size": "151936",
        "held": "true",
        "card": '{"context_length": 64}',
    }
    labels = "gpu=h100, zone = a,empty="
    assert read(port="30000, http", labels=labels, modle="x", **values) == Annotations(
        ports=(30000, "http"),
        scheme="https",
        format="sglang",
        model="org/Model-7B",
        worker_type="prefill",
        bootstrap_port=8998,
        priority=-3,
        vocab_size=151936,
        held=True,
        card=CardValues(context_length=64),
        labels={"gpu": "h100", "zone": "a", "empty": ""},
        unknown=("modle",),
    )
    assert Annotations.read({"other/port": "x", "tito-gateway": "x"}) == Annotations()


def test_empty_value_is_unset() -> None:
    names = [each.name for each in fields(Annotations) if each.name not in ("ports", "unknown")]
    assert read(port=" ", **dict.fromkeys(names, " ")) == Annotations()


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("port", ("0", "65536", "ht tp", "30000,-", "３")),
        ("scheme", ("ftp",)),
        ("worker-type", ("both",)),
        ("bootstrap-port", ("x",)),
        ("priority", ("high", "1.5", "9" * 5000)),
        ("held", ("maybe",)),
        ("card", ("x", "[]", '{"context_length": "x"}', "[" * 9999)),
        ("labels", ("gpu", "=x")),
    ],
)
def test_error_names_the_annotation(name: str, values: tuple[str, ...]) -> None:
    for value in values:
        with pytest.raises(BadAnnotation, match=re.escape(f"tito-gateway/{name}: ")) as caught:
            Annotations.read({f"tito-gateway/{name}": value})
        assert len(str(caught.value)) < 200


@pytest.mark.parametrize(("text", "port"), [("80", 80), ("http-2", "http-2"), ("", None), ("--", None)])
def test_port_is_a_number_or_a_name(text: str, port: int | str | None) -> None:
    assert port_of(text) == port
