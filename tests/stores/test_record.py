"""The record of a worker."""

from __future__ import annotations

import json
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cards.values import CardValues
from gateway.stores.record import LABELS_LIMIT, TEXT_LIMIT, URL_LIMIT, WORKER_TYPES, WorkerRecord

URL = "http://a:1"

texts = st.text(min_size=1, max_size=20).filter(str.isprintable)
records = st.builds(
    WorkerRecord,
    url=st.sampled_from([URL, "https://[::1]:30000/a/b", "http://a:1@3"]),
    format=st.none() | texts,
    model=st.none() | texts,
    worker_type=st.sampled_from(WORKER_TYPES),
    bootstrap_port=st.none() | st.integers(1, 65535),
    priority=st.none() | st.integers(-1000, 1000),
    card=st.builds(CardValues, vocab_size=st.none() | st.integers(1, 1 << 20)),
    labels=st.dictionaries(texts, st.text(max_size=20), max_size=3),
    cordoned=st.booleans(),
)


@given(records)
def test_any_record_survives_json_on_one_line(record: WorkerRecord) -> None:
    text = record.to_json()
    assert "\n" not in text
    assert WorkerRecord.from_json(text) == record
    assert WorkerRecord.from_json(text.encode()) == record
    assert hash(WorkerRecord.from_json(text)) == hash(record)


def test_json_has_no_members_with_default_values_and_older_names_are_read() -> None:
    assert json.loads(WorkerRecord(URL).to_json()) == {"url": URL}
    record = WorkerRecord(URL, priority=3, labels={"a": "b"}, cordoned=True)
    assert json.loads(record.to_json()) == {"url": URL, "priority": 3, "labels": {"a": "b"}, "held": True}
    for name in ("held", "cordoned"):
        assert WorkerRecord.of({"url": URL, name: True}) == WorkerRecord(URL, cordoned=True)


def test_unknown_members_are_ignored_and_null_is_unset() -> None:
    record = WorkerRecord.of({"url": URL, "cost": 1.5, "model": None, "labels": None, "worker_type": None})
    assert record == WorkerRecord(URL)


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ({}, "url is missing"),
        ({"url": None}, "url is missing"),
        ({"url": 1}, "url must be a text"),
        ({"url": ""}, "url must be a text"),
        ({"url": "a:1"}, "not of the form"),
        ({"url": "http://me:secret@a:1"}, "credentials"),
        ({"url": "http://a:1/" + "x" * URL_LIMIT}, "url must have at most"),
        ({"url": URL, "model": []}, "model must be a text"),
        ({"url": URL, "format": "x" * (TEXT_LIMIT + 1)}, "format must have at most"),
        ({"url": URL, "model": "a\nb"}, "model must not hold control"),
        ({"url": URL, "worker_type": "both"}, "worker_type must be one of regular, prefill, decode"),
        ({"url": URL, "worker_type": ["regular"]}, "worker_type must be one of"),
        ({"url": URL, "bootstrap_port": True}, "bootstrap_port must be an integer from 1 to 65535"),
        ({"url": URL, "bootstrap_port": 0}, "bootstrap_port must be"),
        ({"url": URL, "priority": 1.5}, "priority must be an integer"),
        ({"url": URL, "priority": 1 << 40}, "priority must be an integer"),
        ({"url": URL, "vocab_size": 0}, "vocab_size must be an integer"),
        ({"url": URL, "labels": ["a"]}, "labels must be an object"),
        ({"url": URL, "labels": {"a": 1}}, "label a must be a text"),
        ({"url": URL, "labels": {"": "b"}}, "a label's name must be a text"),
        ({"url": URL, "labels": {str(n): "" for n in range(LABELS_LIMIT + 1)}}, "labels must be at most"),
        ({"url": URL, "held": "yes"}, "held must be true or false"),
    ],
)
def test_bad_member_is_named(members: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as caught:
        WorkerRecord.of(members)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", b"\xff", "[" * 100_000])
def test_text_that_is_not_a_record_raises_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match="record"):
        WorkerRecord.from_json(text)


def test_labels_of_a_record_cannot_be_changed_from_outside() -> None:
    given = {"a": "b"}
    record = WorkerRecord(URL, labels=MappingProxyType(given))
    given["a"] = "c"
    assert record.labels == {"a": "b"}
    assert replace(record, cordoned=True).labels == record.labels
