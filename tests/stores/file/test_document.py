"""The document in a file of workers."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from gateway.stores.file.document import Document, InvalidDocument
from tests.stores.contract import ONE, TWO

NOW = datetime(2030, 1, 31, 12, tzinfo=UTC)
LATER = NOW + timedelta(seconds=10)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" * 100_000, "not JSON"),
        ("\udcff", "not JSON"),
        ("[]", "must be a JSON object"),
        ("{}", 'a list of "workers"'),
        ('{"workers": {}}', 'a list of "workers"'),
        ('{"workers": [1]}', "worker 1 must be a JSON object or a URL"),
        ('{"workers": ["http://a:1", {}]}', "worker 2: url is missing"),
        ('{"workers": ["a"]}', "worker 1: 'a' is not"),
        ('{"workers": ["http://a:1", "http://a:1"]}', "http://a:1 is listed twice"),
        ('{"workers": [{"url": "http://a:1", "expires_at": 5}]}', "expires_at must be a time"),
        ('{"workers": [{"url": "http://a:1", "expires_at": "soon"}]}', "worker 1: Invalid isoformat"),
        ('{"workers": [{"url": "http://a:1", "expires_at": "2030-01-31T12:00:00"}]}', "must have a zone"),
        ('{"workers": [], "marks": []}', "marks must be lists"),
    ],
)
def test_error_of_an_invalid_document_says_what_is_wrong_and_where(text: str, problem: str) -> None:
    with pytest.raises(InvalidDocument, match=problem):
        Document(text.encode(errors="surrogateescape"))


def test_text_contains_what_was_put() -> None:
    document = Document(b" \n")
    assert document.records(NOW) == Document(None).records(NOW) == {}
    document.put(ONE, None, NOW)
    document.put(TWO, LATER, NOW)
    again = Document(document.text)
    assert again.records(NOW) == {ONE.url: ONE, TWO.url: TWO}
    assert again.text == document.text
    assert json.loads(again.text)["workers"][1]["expires_at"] == "2030-01-31T12:00:10+00:00"


def test_record_expires_at_its_time_and_is_pruned_later() -> None:
    """A put without an expiry does not keep one that has passed: the TTL of one gateway must not remove what
    another one registers later."""
    document = Document()
    document.put(ONE, LATER, NOW)
    assert document.records(LATER - timedelta(microseconds=1))
    assert not document.records(LATER)
    assert document.entry(ONE.url)
    document.prune(LATER)
    assert document.entry(ONE.url) is None
    document.put(ONE, NOW, NOW)
    document.put(ONE, None, NOW)
    assert document.records(LATER) == {ONE.url: ONE}


def test_extend_does_not_affect_a_record_without_an_expiry() -> None:
    document = Document()
    document.put(ONE, None, NOW)
    document.put(TWO, NOW, NOW)
    for record in (ONE, TWO):
        document.extend(record.url, LATER)
    assert document.records(NOW) == {ONE.url: ONE, TWO.url: TWO}
    assert document.records(LATER) == {ONE.url: ONE}
