"""Every field of the engines is in a table, and what the formats read is in it too."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.formats.sglang.body_fields import RESERVED
from gateway.formats.sglang.join.rules import ECHOED, META, NOT_ECHOED, TOP
from gateway.formats.sglang.join.rules import MergeRule as SglangRule
from gateway.formats.sglang.request import BodyFields, Sampling
from gateway.formats.sglang.vocabulary import KnownMembers
from gateway.formats.trtllm import request as trtllm_request
from gateway.formats.trtllm.join import MergeRule as TrtllmRule
from gateway.formats.vllm.join.rules import CHOICE, REPLY, USAGE
from gateway.formats.vllm.join.rules import MergeRule as VllmRule
from gateway.formats.vllm.request import Request
from scripts.known_fields import sglang, trtllm, vllm
from tests.formats.sglang.support import TIMINGS
from tests.formats.support import FIXTURES, records

#: The fields of an engine, group by group, and the classes they may have.
TABLES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "sglang": (sglang.FIELDS, (sglang.Use, SglangRule)),
    "trtllm": (trtllm.FIELDS, (trtllm.Use, TrtllmRule)),
    "vllm": (vllm.FIELDS, (vllm.Use, VllmRule)),
}


@pytest.mark.parametrize("engine", TABLES)
def test_every_field_of_the_engine_is_classified_and_every_class_has_a_field(engine: str) -> None:
    """The table has the fields in the engine's sources and no others. A class without a field has no use."""
    fields, kinds = TABLES[engine]
    groups = json.loads((FIXTURES / engine / "fields.json").read_text())["groups"]
    assert {group: set(names) for group, names in fields.items()} == {
        group: set(names) for group, names in groups.items()
    }
    used = {use for group in fields.values() for use in group.values()}
    assert used == {use for kind in kinds for use in kind}


def test_fields_that_sglangs_parser_reads_or_refuses_are_those_of_the_table() -> None:
    """``model`` is no field of the engine."""
    uses = sglang.FIELDS["request"].items()
    read = {name for name, use in uses if use in (sglang.Use.READ, sglang.Use.NAMES)}
    looked_at = {*BodyFields.__struct_fields__, *KnownMembers.__struct_fields__}
    assert read == looked_at - set(RESERVED) - {"model"}
    sampling = {name for name, use in sglang.FIELDS["sampling"].items() if use is sglang.Use.READ}
    assert sampling == set(Sampling.__struct_fields__)
    assert set(RESERVED) == sglang.REFUSED


def test_fields_that_vllms_parser_reads_are_those_of_the_table() -> None:
    groups = (vllm.FIELDS["request"], vllm.FIELDS["sampling"])
    read = {name for group in groups for name, use in group.items() if use is vllm.Use.READ}
    kept = {"token_ids", "features", "model", "stream", "cache_salt", "priority", "max_tokens"}
    assert kept <= set(Request.__struct_fields__)
    assert read == kept | {"sampling_params", "n"}


def test_fields_that_trtllms_parser_reads_are_those_of_the_table() -> None:
    uses = trtllm.FIELDS["request"].items()
    looked_at = {name for name, use in uses if use is not trtllm.Use.PASSED}
    assert looked_at == set(trtllm_request.Body.__struct_fields__)


def test_rules_beside_sglangs_table_name_what_is_in_it() -> None:
    assert set(META) >= TIMINGS | ECHOED | {NOT_ECHOED}
    assert {META[name] for name in ECHOED} == {SglangRule.APPEND}


@pytest.mark.parametrize(
    ("engine", "top", "inner", "keys"),
    [("sglang", TOP, "meta_info", META), ("vllm", REPLY, "choices", CHOICE), ("vllm", REPLY, "usage", USAGE)],
)
def test_recorded_replies_have_no_other_members(engine: str, top: Any, inner: str, keys: Any) -> None:
    for record in records(engine, "generate").values():
        texts = record.get("body", "").split("\n\n") if record.get("status") == 200 else ()
        for text in (each.removeprefix("data: ") for each in texts):
            for found in _listed(json.loads(text) if text[:1] in ("{", "[") and text != "[DONE]" else []):
                assert found.keys() - {"error"} <= set(top)
                for each in _listed(found.get(inner) or {}):
                    assert each.keys() <= set(keys)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
