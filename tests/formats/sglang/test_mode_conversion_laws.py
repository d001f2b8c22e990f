"""Conversion held to the model of the engine: what comes out is what the other mode would have said."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.formats.sglang import SglangFormat
from gateway.testing.damage import cuts
from gateway.testing.drive import Asked, document, drive
from gateway.testing.model import ModelExchange
from tests.contract.models.sglang import SglangModel
from tests.formats.sglang.support import FORMAT

MODES = {"incremental": "cumulative", "cumulative": "incremental"}


def converted(asked: Asked, format: SglangFormat, stream: bytes, data: st.DataObject) -> bytes:
    reader = format.reader(asked.request, asked.model.worker, asked.ids, asked.exchange.stream_head)
    told = drive(reader, data.draw(cuts(stream), "pieces"))
    assert told.failure is None
    return told.out


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("sent", MODES)
def test_stream_of_any_kind_is_the_same_reply_in_the_other_mode(sent: str, told: bool) -> None:
    """Also where the engine merged events, and back again."""
    model = SglangModel(sent, told=told)
    there = FORMAT.configured({"stream_mode": MODES[sent]})
    back = SglangModel(MODES[sent], told=told)
    home = FORMAT.configured({"stream_mode": sent})

    @settings(max_examples=60, deadline=None)
    @given(model.exchanges(), st.data())
    def law(exchange: ModelExchange, data: st.DataObject) -> None:
        stream = b"".join(data.draw(model.merges(exchange), "merged stream"))
        asked, again = Asked(model, exchange), Asked(back, exchange)
        other = converted(asked, there, stream, data)
        assert reply(again, other) == reply(asked, stream)
        assert reply(asked, converted(again, home, other, data)) == reply(asked, stream)

    law()


def reply(asked: Asked, stream: bytes) -> Any:
    told = asked.join((stream,))
    assert told.failure is None
    return document(told.out)


def test_event_of_a_converted_stream_has_what_the_mode_has() -> None:
    """An incremental one never says a token twice, a cumulative one says all of them each time."""

    @settings(max_examples=60, deadline=None)
    @given(SglangModel("cumulative").exchanges())
    def law(exchange: ModelExchange) -> None:
        asked = Asked(SglangModel("cumulative"), exchange)
        format = FORMAT.configured({"stream_mode": "incremental"})
        reader = format.reader(asked.request, asked.model.worker, asked.ids, exchange.stream_head)
        out = drive(reader, exchange.stream).out
        had: dict[int, int] = {}
        for text in out.split(b"\n\n")[:-2]:
            told = json.loads(text[6:])
            if "error" in told or told["meta_info"].get("prompt_tokens") is None:
                continue
            index = told.get("index", 0)
            had[index] = had.get(index, 0) + len(told["output_ids"])
            assert had[index] == told["meta_info"]["completion_tokens"]

    law()
