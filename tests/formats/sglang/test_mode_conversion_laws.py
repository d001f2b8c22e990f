"""A converted stream is what the model of the engine would have sent in the other mode."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.formats.sglang import SglangFormat
from gateway.testing.damage import splits
from gateway.testing.drive import ParsedExchange, document, drive
from gateway.testing.model import ModelExchange
from tests.contract.models.sglang import SglangModel
from tests.formats.sglang.support import FORMAT

MODES = {"incremental": "cumulative", "cumulative": "incremental"}


def converted(parsed: ParsedExchange, format: SglangFormat, stream: bytes, data: st.DataObject) -> bytes:
    reader = format.reader(parsed.request, parsed.model.worker, parsed.ids, parsed.exchange.stream_head)
    result = drive(reader, data.draw(splits(stream), "pieces"))
    assert result.failure is None
    return result.out


@pytest.mark.parametrize("reported", [True, False])
@pytest.mark.parametrize("sent", MODES)
def test_stream_of_any_kind_is_the_same_reply_in_the_other_mode(sent: str, reported: bool) -> None:
    """Also where the engine merged events, and back again."""
    model = SglangModel(sent, reported=reported)
    there = FORMAT.configured({"stream_mode": MODES[sent]})
    back = SglangModel(MODES[sent], reported=reported)
    home = FORMAT.configured({"stream_mode": sent})

    @settings(max_examples=60, deadline=None)
    @given(model.exchanges(), st.data())
    def law(exchange: ModelExchange, data: st.DataObject) -> None:
        stream = b"".join(data.draw(model.merges(exchange), "merged stream"))
        parsed, again = ParsedExchange(model, exchange), ParsedExchange(back, exchange)
        other = converted(parsed, there, stream, data)
        assert reply(again, other) == reply(parsed, stream)
        assert reply(parsed, converted(again, home, other, data)) == reply(parsed, stream)

    law()


def reply(parsed: ParsedExchange, stream: bytes) -> Any:
    result = parsed.join((stream,))
    assert result.failure is None
    return document(result.out)


def test_event_of_a_converted_stream_has_what_the_mode_has() -> None:
    """An incremental stream never sends a token twice, a cumulative one sends all of them each time."""

    @settings(max_examples=60, deadline=None)
    @given(SglangModel("cumulative").exchanges())
    def law(exchange: ModelExchange) -> None:
        parsed = ParsedExchange(SglangModel("cumulative"), exchange)
        format = FORMAT.configured({"stream_mode": "incremental"})
        reader = format.reader(parsed.request, parsed.model.worker, parsed.ids, exchange.stream_head)
        out = drive(reader, exchange.stream).out
        had: dict[int, int] = {}
        for text in out.split(b"\n\n")[:-2]:
            result = json.loads(text[6:])
            if "error" in result or result["meta_info"].get("prompt_tokens") is None:
                continue
            index = result.get("index", 0)
            had[index] = had.get(index, 0) + len(result["output_ids"])
            assert had[index] == result["meta_info"]["completion_tokens"]

    law()
