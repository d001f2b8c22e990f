"""The laws of every format, each a check of one generated exchange.

Owns: what must hold whatever an engine says and however its bytes arrive. Must never enter: a dialect, a
test runner.

A law takes a model, one of its exchanges and ``data`` to draw more from. It fails by AssertionError, and
returns whether the exchange was one that it has something to say of.
"""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from gateway.errors import InvalidRequest
from gateway.formats.contract import Ids, Projection, ReplyFacts, UpstreamRequest
from gateway.formats.optional import ReleasesBody
from gateway.formats.routing_hints import Hints
from gateway.testing.damage import bodies, cuts, damaged, header_lines
from gateway.testing.drive import Asked, claim, document, respelled, strings
from gateway.testing.model import EngineModel, JoiningModel, ModelExchange, private_ids

Law = Callable[[EngineModel, ModelExchange, st.DataObject], bool]

_HEX = re.compile("[0-9a-f]+")
_NOT_UPSTREAM = frozenset(
    b"host content-length connection keep-alive te trailer transfer-encoding upgrade proxy-connection".split()
)


def stream_and_unary_give_the_same_reply(
    model: EngineModel, exchange: ModelExchange, data: st.DataObject
) -> bool:
    """The stream joins to the engine's own reply without one, but for what the model calls volatile."""
    asked = Asked(model, exchange)
    if not asked.joins:
        return False
    joined = asked.join(exchange.stream)
    assert joined.failure is None, joined
    _assert_same_reply(joined.out, exchange.unary, exchange.volatile)
    if exchange.unary_head.status != 200:
        assert joined.facts.error_status == exchange.unary_head.status, joined
    return True


def recutting_changes_nothing(model: EngineModel, exchange: ModelExchange, data: st.DataObject) -> bool:
    """However the upstream bytes are cut, whatever happened to them, a client gets the same bytes."""
    asked = Asked(model, exchange)
    sent = data.draw(damaged(b"".join(exchange.stream)), "upstream bytes")
    pieces = data.draw(cuts(sent), "pieces")
    assert asked.relay(pieces) == asked.relay((sent,))
    if asked.joins:
        assert asked.join(pieces) == asked.join((sent,))
    return True


def joining_is_associative(model: EngineModel, exchange: ModelExchange, data: st.DataObject) -> bool:
    """Events that the engine merged for a slow reader join to the same reply and the same facts."""
    asked = Asked(model, exchange)
    if not asked.joins:
        return False
    assert isinstance(model, JoiningModel), "the model of a format with `join` has `merges`"
    merged = data.draw(model.merges(exchange), "merged stream")
    one, other = asked.join(merged), asked.join(exchange.stream)
    assert one.failure == other.failure
    _assert_same_reply(one.out, other.out, exchange.volatile)
    _assert_same_but_for_merging(one.facts, other.facts)
    _assert_same_but_for_merging(asked.relay(merged).facts, asked.relay(exchange.stream).facts)
    return merged != exchange.stream


def facts_agree(model: EngineModel, exchange: ModelExchange, data: st.DataObject) -> bool:
    """Relay, join and the reply without a stream tell the same tokens, finish reasons, usage and ending."""
    asked = Asked(model, exchange)
    relayed = asked.relay(exchange.stream).facts
    if asked.joins:
        assert relayed == asked.join(exchange.stream).facts
    _assert_facts(relayed, exchange)
    if exchange.unary_head.status == 200:
        _assert_facts(asked.relay_unary().facts, exchange)
    return True


def relay_is_the_identity(model: EngineModel, exchange: ModelExchange, data: st.DataObject) -> bool:
    """What the engine sends is what the client gets, as soon as it is read, with a stream and without."""
    asked = Asked(model, exchange)
    told = asked.relay(exchange.stream)
    assert (told.out, told.failure) == (b"".join(exchange.stream), None)
    unary = asked.relay_unary()
    assert (unary.out, unary.failure) == (exchange.unary, None)
    reader = model.format.reader(asked.request, model.worker, asked.ids, exchange.stream_head)
    assert reader.streaming
    for number, event in enumerate(exchange.stream[:-1]):
        assert reader.feed(event) == event, f"event {number} was held"
    return True


def parse_and_project_are_total(model: EngineModel, exchange: ModelExchange, data: st.DataObject) -> bool:
    """Any bytes are a request or an InvalidRequest, and a request can be projected, sent and aborted."""
    body = data.draw(bodies(exchange.body), "body")
    headers = data.draw(header_lines(exchange.headers), "headers")
    try:
        request = model.format.parse(body, headers)
    except InvalidRequest as error:
        assert error.message
        return True
    projection = model.format.project(request)
    assert projection.samples >= 0 and all(isinstance(name, str) for name in projection.ids)
    hints = projection.hints()
    for lazy in (hints.token_ids, hints.images):
        if lazy is not None:
            lazy()
    ids = claim(projection.ids, projection.ids_usable)
    _assert_request(model, model.format.upstream(request, model.worker, ids))
    calls = model.format.abort(model.worker, request, ids)
    for call in calls:
        _assert_request(model, call)
    if isinstance(model.format, ReleasesBody):
        bodiless = model.format.without_body(request)
        assert list(model.format.abort(model.worker, bodiless, ids)) == list(calls)
    return True


def splice_then_unsplice_is_the_identity(
    model: EngineModel, exchange: ModelExchange, data: st.DataObject
) -> bool:
    """A private id on the way changes the id and nothing else, and the client sees its own again."""
    asked = Asked(model, exchange)
    named = asked.projection.ids
    private = data.draw(_private(max(1, len(named)), named), "private ids")
    sent = model.format.upstream(asked.request, model.worker, Ids(named or private, private))
    again = model.format.project(model.format.parse(sent.body, sent.headers))
    assert again.ids == private
    assert _essence(again) == _essence(asked.projection)
    if not named:
        return True
    assert respelled(sent.body, private, named) == exchange.body
    _assert_mapped_back(asked, data)
    return True


def base64_survives(model: EngineModel, exchange: ModelExchange, data: st.DataObject) -> bool:
    """An array that a reply holds as base64 is byte for byte the same after split and join."""
    asked, arrays = Asked(model, exchange), _arrays(exchange.unary, exchange.volatile)
    if not arrays or not asked.joins:
        return False
    stream = b"".join(exchange.stream)
    joined = asked.join(data.draw(cuts(stream), "pieces"))
    assert _arrays(joined.out, exchange.volatile) == arrays
    return True


def broken_off_stream_is_never_whole(
    model: EngineModel, exchange: ModelExchange, data: st.DataObject
) -> bool:
    """A stream that ends early fails, or has lost nothing that a client would miss."""
    asked = Asked(model, exchange)
    whole = asked.relay(exchange.stream).facts
    kept = exchange.stream[: data.draw(st.integers(0, len(exchange.stream) - 1), "events kept")]
    for told in [asked.relay(kept), *([asked.join(kept)] if asked.joins else [])]:
        if told.failure is None:
            assert (told.facts.tokens, told.facts.finish_reasons) == (whole.tokens, whole.finish_reasons)
            assert told.facts.ending == whole.ending
    return True


#: Laws of ``join``: they say nothing of a format that cannot fold a stream.
JOIN_LAWS: frozenset[str] = frozenset(
    {"stream_and_unary_give_the_same_reply", "joining_is_associative", "base64_survives"}
)
#: Every law, in the order in which an author will want to meet them.
LAWS: tuple[Law, ...] = (
    parse_and_project_are_total,
    splice_then_unsplice_is_the_identity,
    relay_is_the_identity,
    recutting_changes_nothing,
    broken_off_stream_is_never_whole,
    stream_and_unary_give_the_same_reply,
    joining_is_associative,
    facts_agree,
    base64_survives,
)


def _assert_same_reply(one: bytes, other: bytes, volatile: frozenset[str]) -> None:
    assert document(one, volatile) == document(other, volatile)


def _assert_same_but_for_merging(merged: ReplyFacts, facts: ReplyFacts) -> None:
    """Merging may drop usage that only an earlier event told, and change which sample ends first."""
    usage = [(merged.prompt_tokens, facts.prompt_tokens), (merged.cached_tokens, facts.cached_tokens)]
    assert all(one in (None, other) for one, other in usage)
    expected = replace(
        facts,
        prompt_tokens=merged.prompt_tokens,
        cached_tokens=merged.cached_tokens,
        finish_reasons=sorted(facts.finish_reasons),
    )
    assert replace(merged, finish_reasons=sorted(merged.finish_reasons)) == expected


def _assert_facts(facts: ReplyFacts, exchange: ModelExchange) -> None:
    assert facts.tokens == exchange.tokens
    assert Counter(facts.finish_reasons) == Counter(exchange.finish_reasons)
    assert facts.ending == exchange.ending
    assert facts.terminal
    if exchange.prompt_tokens is not None:
        assert facts.prompt_tokens == exchange.prompt_tokens


def _assert_request(model: EngineModel, request: UpstreamRequest) -> None:
    assert request.target.startswith(model.worker.prefix + b"/")
    for name, value in request.headers:
        assert name == name.lower() and name not in _NOT_UPSTREAM
        assert not {b"\r", b"\n", b"\0"} & {bytes([byte]) for byte in name + value}


def _private(count: int, taken: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...]]:
    free = private_ids().filter(lambda made: made not in taken)
    return st.lists(free, min_size=count, max_size=count, unique=True).map(tuple)


def _essence(projection: Projection) -> tuple[Any, ...]:
    """What must not depend on the ids."""
    hints = projection.hints()
    prompt = None if hints.token_ids is None else list(hints.token_ids())
    images = None if hints.images is None else hints.images()
    rest = replace(hints, token_ids=None, images=None)
    return prompt, images, rest, projection._replace(ids=(), ids_usable=True, hints=Hints)


def _assert_mapped_back(asked: Asked, data: st.DataObject) -> None:
    """The engine knows the exchange by the ids in its replies, the client by others, of any spelling."""
    dispatch = asked.projection.ids
    public = data.draw(_public(len(dispatch)), "public ids")
    ids, same = Ids(public, dispatch), Ids(dispatch, dispatch)
    stream = asked.exchange.stream
    expected = [_spelled(b"".join(stream), dispatch, public, ascii_only) for ascii_only in (True, False)]
    assert asked.relay(stream, ids).out in expected
    if not asked.joins:
        return
    joined, plain = asked.join(stream, ids), asked.join(stream, same)
    assert document(joined.out) == document(_spelled(plain.out, dispatch, public, True))


def _public(count: int) -> st.SearchStrategy[tuple[str, ...]]:
    text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
    return st.lists(text, min_size=count, max_size=count).map(tuple)


def _spelled(data: bytes, old: tuple[str, ...], new: tuple[str, ...], ascii_only: bool) -> bytes:
    quoted = tuple(json.dumps(name, ensure_ascii=ascii_only)[1:-1] for name in new)
    return respelled(data, old, quoted)


def _arrays(reply: bytes, volatile: frozenset[str]) -> list[bytes]:
    """What the base64 strings of a reply hold."""
    return [found for text in strings(document(reply, volatile)) if (found := _decoded(text)) is not None]


def _decoded(text: str) -> bytes | None:
    """None for what is too short to be an array, and for ids."""
    if len(text) < 16 or _HEX.fullmatch(text):
        return None
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return None
