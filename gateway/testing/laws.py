"""The laws of every format: each checks one generated exchange.

Owns: what holds for every reply of an engine, however its bytes arrive. Must never enter: a dialect, a test
runner.

A law takes a model, one of its exchanges, and ``data`` to draw more from. It raises AssertionError if it is
broken, and returns False if it does not apply to the exchange.
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
from gateway.testing.damage import bodies, damaged, header_lines, splits
from gateway.testing.drive import ParsedExchange, claim, document, respelled, strings
from gateway.testing.model import EngineModel, JoiningModel, ModelExchange, private_ids

Law = Callable[[EngineModel, ModelExchange, st.DataObject], bool]

_HEX = re.compile("[0-9a-f]+")
_NOT_UPSTREAM = frozenset(
    b"host content-length connection keep-alive te trailer transfer-encoding upgrade proxy-connection".split()
)


def stream_and_unary_give_the_same_reply(
    model: EngineModel, exchange: ModelExchange, data: st.DataObject
) -> bool:
    """The stream joins to the engine's unary reply, but for volatile keys."""
    parsed = ParsedExchange(model, exchange)
    if not parsed.joins:
        return False
    joined = parsed.join(exchange.stream)
    assert joined.failure is None, joined
    _assert_same_reply(joined.out, exchange.unary, exchange.volatile)
    if exchange.unary_head.status != 200:
        assert joined.facts.error_status == exchange.unary_head.status, joined
    return True


def recutting_changes_nothing(model: EngineModel, exchange: ModelExchange, data: st.DataObject) -> bool:
    """However the worker's bytes are split, even damaged ones, the client gets the same bytes."""
    parsed = ParsedExchange(model, exchange)
    sent = data.draw(damaged(b"".join(exchange.stream)), "upstream bytes")
    pieces = data.draw(splits(sent), "pieces")
    assert parsed.relay(pieces) == parsed.relay((sent,))
    if parsed.joins:
        assert parsed.join(pieces) == parsed.join((sent,))
    return True


def joining_is_associative(model: EngineModel, exchange: ModelExchange, data: st.DataObject) -> bool:
    """Events that the engine merged for a slow client join to the same reply and the same facts."""
    parsed = ParsedExchange(model, exchange)
    if not parsed.joins:
        return False
    assert isinstance(model, JoiningModel), "the model of a format with `join` has `merges`"
    merged = data.draw(model.merges(exchange), "merged stream")
    one, other = parsed.join(merged), parsed.join(exchange.stream)
    assert one.failure == other.failure
    _assert_same_reply(one.out, other.out, exchange.volatile)
    _assert_same_but_for_merging(one.facts, other.facts)
    _assert_same_but_for_merging(parsed.relay(merged).facts, parsed.relay(exchange.stream).facts)
    return merged != exchange.stream


def facts_agree(model: EngineModel, exchange: ModelExchange, data: st.DataObject) -> bool:
    """Stream, join and unary reply give the same tokens, finish reasons, usage and ending."""
    parsed = ParsedExchange(model, exchange)
    relayed = parsed.relay(exchange.stream).facts
    if parsed.joins:
        assert relayed == parsed.join(exchange.stream).facts
    _assert_facts(relayed, exchange)
    if exchange.unary_head.status == 200:
        _assert_facts(parsed.relay_unary().facts, exchange)
    return True


def relay_is_the_identity(model: EngineModel, exchange: ModelExchange, data: st.DataObject) -> bool:
    """The client gets the engine's bytes, each event as soon as it is read, in streams and unary replies."""
    parsed = ParsedExchange(model, exchange)
    outcome = parsed.relay(exchange.stream)
    assert (outcome.out, outcome.failure) == (b"".join(exchange.stream), None)
    unary = parsed.relay_unary()
    assert (unary.out, unary.failure) == (exchange.unary, None)
    reader = model.format.reader(parsed.request, model.worker, parsed.ids, exchange.stream_head)
    assert reader.streaming
    for number, event in enumerate(exchange.stream[:-1]):
        assert reader.feed(event) == event, f"event {number} was held"
    return True


def parse_and_project_are_total(model: EngineModel, exchange: ModelExchange, data: st.DataObject) -> bool:
    """Any bytes are a request or an InvalidRequest; a request can be projected, sent and aborted."""
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
    """A private id changes the id and nothing else, and the client sees its own again."""
    parsed = ParsedExchange(model, exchange)
    named = parsed.projection.ids
    private = data.draw(_private(max(1, len(named)), named), "private ids")
    sent = model.format.upstream(parsed.request, model.worker, Ids(named or private, private))
    again = model.format.project(model.format.parse(sent.body, sent.headers))
    assert again.ids == private
    assert _essence(again) == _essence(parsed.projection)
    if not named:
        return True
    assert respelled(sent.body, private, named) == exchange.body
    _assert_mapped_back(parsed, data)
    return True


def base64_survives(model: EngineModel, exchange: ModelExchange, data: st.DataObject) -> bool:
    """An array in base64 is the same bytes after split and join."""
    parsed, arrays = ParsedExchange(model, exchange), _arrays(exchange.unary, exchange.volatile)
    if not arrays or not parsed.joins:
        return False
    stream = b"".join(exchange.stream)
    joined = parsed.join(data.draw(splits(stream), "pieces"))
    assert _arrays(joined.out, exchange.volatile) == arrays
    return True


def truncated_stream_is_never_complete(
    model: EngineModel, exchange: ModelExchange, data: st.DataObject
) -> bool:
    """A stream that ends early fails, unless only its terminal marker is missing."""
    parsed = ParsedExchange(model, exchange)
    complete = parsed.relay(exchange.stream).facts
    kept = exchange.stream[: data.draw(st.integers(0, len(exchange.stream) - 1), "events kept")]
    for outcome in [parsed.relay(kept), *([parsed.join(kept)] if parsed.joins else [])]:
        if outcome.failure is None:
            assert (outcome.facts.tokens, outcome.facts.finish_reasons) == (
                complete.tokens,
                complete.finish_reasons,
            )
            assert outcome.facts.ending == complete.ending
    return True


#: Laws of ``join``: they say nothing of a format that cannot fold a stream.
JOIN_LAWS: frozenset[str] = frozenset(
    {"stream_and_unary_give_the_same_reply", "joining_is_associative", "base64_survives"}
)
#: All laws, in the order in which an author meets them.
LAWS: tuple[Law, ...] = (
    parse_and_project_are_total,
    splice_then_unsplice_is_the_identity,
    relay_is_the_identity,
    recutting_changes_nothing,
    truncated_stream_is_never_complete,
    stream_and_unary_give_the_same_reply,
    joining_is_associative,
    facts_agree,
    base64_survives,
)


def _assert_same_reply(one: bytes, other: bytes, volatile: frozenset[str]) -> None:
    assert document(one, volatile) == document(other, volatile)


def _assert_same_but_for_merging(merged: ReplyFacts, facts: ReplyFacts) -> None:
    """Merging may drop usage that an earlier event contained, and change which sample ends first."""
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
    """Return the projection without its ids, in a form to compare."""
    hints = projection.hints()
    prompt = None if hints.token_ids is None else list(hints.token_ids())
    images = None if hints.images is None else hints.images()
    rest = replace(hints, token_ids=None, images=None)
    return prompt, images, rest, projection._replace(ids=(), ids_usable=True, hints=Hints)


def _assert_mapped_back(parsed: ParsedExchange, data: st.DataObject) -> None:
    """Assert that the client gets public ids of any characters where the engine sent the dispatch ids."""
    dispatch = parsed.projection.ids
    public = data.draw(_public(len(dispatch)), "public ids")
    ids, same = Ids(public, dispatch), Ids(dispatch, dispatch)
    stream = parsed.exchange.stream
    expected = [_with_ids(b"".join(stream), dispatch, public, ascii_only) for ascii_only in (True, False)]
    assert parsed.relay(stream, ids).out in expected
    if not parsed.joins:
        return
    joined, plain = parsed.join(stream, ids), parsed.join(stream, same)
    assert document(joined.out) == document(_with_ids(plain.out, dispatch, public, True))


def _public(count: int) -> st.SearchStrategy[tuple[str, ...]]:
    text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
    return st.lists(text, min_size=count, max_size=count).map(tuple)


def _with_ids(data: bytes, old: tuple[str, ...], new: tuple[str, ...], ascii_only: bool) -> bytes:
    quoted = tuple(json.dumps(name, ensure_ascii=ascii_only)[1:-1] for name in new)
    return respelled(data, old, quoted)


def _arrays(reply: bytes, volatile: frozenset[str]) -> list[bytes]:
    """Return the bytes of each base64 string of a reply."""
    return [found for text in strings(document(reply, volatile)) if (found := _decoded(text)) is not None]


def _decoded(text: str) -> bytes | None:
    """Decode base64; None for text too short to be an array, and for ids."""
    if len(text) < 16 or _HEX.fullmatch(text):
        return None
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        return None
