"""Peeking at a big body in steps.

Owns: looking into each member that may be big without taking it in at once. Must never enter: judging what
was found (projection.py), which is the same for every body.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gateway.formats.base import Headers
from gateway.formats.json_steps import (
    BIG,
    Span,
    Steps,
    entries_of,
    members,
    members_of,
    object_of,
    pieces,
    raw,
)
from gateway.formats.sglang.peek import PER_PROMPT, BigPeek, Peek, Sampling, fill, not_an_object
from gateway.formats.sglang.projection import SglangRequest, read, unreadable
from gateway.formats.sglang.prompt_ids import PromptIds
from gateway.formats.sglang.vocabulary import check_in_steps

_WANTED = frozenset(Peek.__struct_fields__) | {"token_ids_logprob"}
_LISTS = ("text", "input_embeds", *PER_PROMPT)
_SAMPLING = frozenset(Sampling.__struct_fields__)


def parse(body: bytes, headers: Headers, vocab_size: int | None) -> Steps[SglangRequest]:
    """What projection.parse does, and vocabulary.check if there is a size, a few milliseconds at a time."""
    try:
        if not object_of(body):
            raise not_an_object()
        found = yield from members(body, _WANTED, repeated="rid")
        spans = found.values
        peek = BigPeek(rid_spans=found.repeated)
        raws = {name: raw(body, span) for name, span in spans.items()}
        yield from _look(peek, body, spans)
        if _is_big(spans.get("sampling_params")):
            raws["sampling_params"] = yield from _sampling(body, spans["sampling_params"])
        fill(peek, raws)
        request = read(peek, body, headers)
        if vocab_size is not None:
            yield from check_in_steps(body, spans, vocab_size)
        return request
    except (msgspec.DecodeError, RecursionError) as error:
        raise unreadable(error) from error


def _look(peek: BigPeek, body: bytes, spans: Mapping[str, Span]) -> Steps[None]:
    for name in _LISTS:
        span = spans.get(name)
        if span is not None and _is_big(span) and body.startswith(b"[", span[0]):
            listed = yield from entries_of(body, span)
            peek.lists[name] = [raw(body, entry) for entry in listed]
    ids = spans.get("input_ids")
    if ids is not None and _is_big(ids):
        peek.ids = PromptIds()
        for piece in pieces(body, ids):
            peek.ids.add(piece)
            yield


def _sampling(body: bytes, span: Span) -> Steps[msgspec.Raw]:
    """The parameters, or the list of them, without what is not looked at."""
    if not body.startswith(b"[", span[0]):
        return msgspec.Raw((yield from _slim(body, span)))
    listed = yield from entries_of(body, span)
    slim = []
    for entry in listed:
        slim.append((yield from _slim(body, entry)))
    return msgspec.Raw(b"[%b]" % b",".join(slim))


def _slim(body: bytes, span: Span) -> Steps[bytes]:
    start, end = span
    if not body.startswith(b"{", start):
        return body[start:end]
    found = yield from members_of(body, span, _SAMPLING)
    named = [b'"%b":%b' % (name.encode(), body[slice(*value)]) for name, value in found.items()]
    return b"{%b}" % b",".join(named)


def _is_big(span: Span | None) -> bool:
    return span is not None and span[1] - span[0] > BIG
