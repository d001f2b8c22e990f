"""Streams are converted into the mode that clients expect, so a fleet may have mixed server flags."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import UpstreamMalformed
from gateway.formats.contract import Ids, Reader, ReplyHead
from gateway.formats.sglang import SglangFormat
from gateway.formats.worker_contract import WorkerInfo
from gateway.testing.damage import splits
from gateway.testing.drive import ParsedExchange, document, drive
from gateway.testing.model import ModelExchange
from tests.contract.models.sglang import SglangModel
from tests.formats.sglang.streams import (
    STATES,
    complete,
    cumulative,
    documents,
    echo,
    echo_part,
    events,
    incremental,
)
from tests.formats.sglang.support import FORMAT, parsed, same
from tests.formats.support import DONE, EVENTS, HEX, View

STREAM: dict[str, Any] = {"input_ids": [1, 2, 3], "stream": True}
SHAPES = {"incremental": incremental, "cumulative": cumulative}
PAIRS = [("incremental", "cumulative"), ("cumulative", "incremental")]


def converting(
    wanted: str, declared: str | None = None, request: dict[str, Any] = STREAM, ids: Ids | None = None
) -> Reader:
    format = FORMAT.configured({"stream_mode": wanted})
    worker = View(info=WorkerInfo("sglang", "sglang_generate", True, stream_mode=declared))
    return format.reader(parsed(request), worker, ids or same(HEX), ReplyHead(200, EVENTS))


def converted(stream: bytes, wanted: str, declared: str | None = None, **more: Any) -> bytes:
    outcome = drive(converting(wanted, declared, **more), [stream])
    assert outcome.failure is None
    return outcome.out


def with_words(stream: bytes) -> bytes:
    for value, word in ((b"-1.0", b"NaN"), (b"-3.0", b"-Infinity"), (b'"]"', b'"NaN 0E0"')):
        assert value in stream
        stream = stream.replace(value, word)
    return stream


@pytest.mark.parametrize(("sent", "wanted"), PAIRS)
def test_numbers_that_only_pythons_json_reads_survive(sent: str, wanted: str) -> None:
    stream = events(SHAPES[sent](*STATES))
    assert converted(with_words(stream), wanted) == with_words(converted(stream, wanted))


@pytest.mark.parametrize(("sent", "wanted"), PAIRS)
@pytest.mark.parametrize("result", [True, False])
def test_stream_becomes_one_of_the_other_mode(sent: str, wanted: str, result: bool) -> None:
    """Log probabilities, masks and lists of unknown name too; text may lag behind its ids."""
    stream = events(SHAPES[sent](*STATES))
    given = converted(stream, wanted, sent if result else None)
    assert documents(given) == SHAPES[wanted](*STATES)
    assert given.endswith(DONE)


@pytest.mark.parametrize("sent", SHAPES)
@pytest.mark.parametrize("declared", [*SHAPES, None])
@pytest.mark.parametrize("by_default", [False, True])
def test_stream_in_the_wanted_mode_or_without_one_is_passed_on_as_it_is(
    sent: str, declared: str | None, by_default: bool
) -> None:
    """Also if the worker declares its former mode: nothing is converted without need."""
    stream = events(SHAPES[sent](*STATES)).replace(b'"output_ids"', b' "output_ids" ')
    assert converted(stream, "engine" if by_default else sent, declared) == stream


@pytest.mark.parametrize(("sent", "wanted"), PAIRS)
def test_first_event_is_passed_on_as_it_is(sent: str, wanted: str) -> None:
    first = events([STATES[0]])[: -len(DONE)].replace(b":", b" : ", 3).replace(b"data : ", b"data: ")
    assert converting(wanted, sent).feed(first) == first


@pytest.mark.parametrize("seen", [1, 2, 3])
def test_echo_of_an_abort_is_the_other_modes_echo(seen: int) -> None:
    """In full, or what was not sent yet, then everything, with the last id again."""
    state = STATES[2]
    parts = incremental(*STATES[:3])
    full_echo = echo(state)
    assert documents(converted(events([*STATES[:3], full_echo]), "incremental")) == [*parts, echo_part(state)]
    assert documents(converted(events([*parts, echo_part(state)]), "cumulative")) == [*STATES[:3], full_echo]
    # Events that a slow reader never got are part of the echo.
    given = converted(events([*STATES[:seen], full_echo]), "incremental", "cumulative")
    joined = drive(FORMAT.join(parsed(STREAM), View(), same(HEX), ReplyHead(200, EVENTS)), [given])
    assert json.loads(joined.out) == full_echo


def test_private_id_is_mapped_back_in_what_was_converted() -> None:
    stream = events(cumulative(*STATES)).replace(b'"a1"', b'"%b"' % HEX.encode())
    given = converted(stream, "incremental", ids=Ids(("job",), (HEX,)))
    assert documents(given)[2]["meta_info"]["id"] == "job"


def test_cumulative_text_that_changes_is_malformed() -> None:
    """The client already has the text."""
    states = (complete([1], "abc"), complete([1, 2], "abd"), complete([1, 2, 3], "abde", {"type": "stop"}))
    reader = converting("incremental", "cumulative")
    outcome = drive(reader, [events(list(states))])
    assert outcome.failure is UpstreamMalformed
    assert documents(outcome.out)[0] == states[0]


def test_events_of_no_sample_are_relayed() -> None:
    stream = b': keep\n\ndata: {"other": 1}\n\n' + events(cumulative(*STATES))
    assert converted(stream, "incremental").startswith(b': keep\n\ndata: {"other": 1}\n\n')


def relayed(parsed: ParsedExchange, format: SglangFormat, stream: bytes, data: st.DataObject) -> bytes:
    reader = format.reader(parsed.request, parsed.model.worker, parsed.ids, parsed.exchange.stream_head)
    result = drive(reader, data.draw(splits(stream), "pieces"))
    assert result.failure is None
    return result.out


@pytest.mark.parametrize("reported", [True, False])
@pytest.mark.parametrize("sent", SHAPES)
def test_stream_of_any_kind_is_the_same_reply_in_the_other_mode(sent: str, reported: bool) -> None:
    model = SglangModel(sent, reported=reported)
    there = FORMAT.configured({"stream_mode": dict(PAIRS)[sent]})
    back = SglangModel(dict(PAIRS)[sent], reported=reported)
    home = FORMAT.configured({"stream_mode": sent})

    @settings(max_examples=60, deadline=None)
    @given(model.exchanges(), st.data())
    def law(exchange: ModelExchange, data: st.DataObject) -> None:
        stream = b"".join(data.draw(model.merges(exchange), "merged stream"))
        parsed, again = ParsedExchange(model, exchange), ParsedExchange(back, exchange)
        other = relayed(parsed, there, stream, data)
        assert reply(again, other) == reply(parsed, stream)
        assert reply(parsed, relayed(again, home, other, data)) == reply(parsed, stream)

    law()


def reply(parsed: ParsedExchange, stream: bytes) -> Any:
    result = parsed.join((stream,))
    assert result.failure is None
    return document(result.out)
