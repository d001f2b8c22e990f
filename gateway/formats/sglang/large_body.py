"""Parsing a large generate body in steps.

Owns: reading each field that may be large a part at a time. Must never enter: judging what was found
(projection.py), which is the same for every body.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gateway.formats.contract import Headers
from gateway.formats.json.steps import (
    STEPWISE_SIZE,
    Steps,
    entries_of,
    members,
    members_of,
    raw,
    starts_as_object,
)
from gateway.formats.json.windows import Span, pieces
from gateway.formats.sglang.body_fields import PER_PROMPT, fill, is_flagged, not_an_object, sampling_of
from gateway.formats.sglang.projection import too_many_rids, unreadable, validate
from gateway.formats.sglang.prompt_ids import PromptIds
from gateway.formats.sglang.request import (
    BodyFields,
    EntryFlags,
    LargeBodyFields,
    Sampling,
    SamplingList,
    SglangRequest,
)
from gateway.formats.sglang.vocabulary import KnownMembers, check_in_steps

_WANTED = frozenset(BodyFields.__struct_fields__) | {"token_ids_logprob"}
_LISTS = ("text", "input_embeds", *PER_PROMPT)
_SAMPLING = frozenset(Sampling.__struct_fields__)
#: Bytes. A longer list of rids is refused without counting them.
_RIDS = 1024 * 1024
#: Sampling parameters up to this size, in bytes, are read at once, and this many of them between two yields.
_SHORT = 4096
_ENTRIES = 256


def parse(body: bytes, headers: Headers, vocab_size: int | None) -> Steps[SglangRequest]:
    """Do in steps of a few milliseconds what projection.parse and, given a size, vocabulary.check do."""
    try:
        if not starts_as_object(body):
            raise not_an_object()
        found = yield from members(body, _WANTED, repeated="rid")
        spans = found.values
        fields = LargeBodyFields(rid_spans=found.repeated, rid_cuts=found.cuts)
        fields.id_spans = {name: spans[name] for name in KnownMembers.__struct_fields__ if name in spans}
        if "routed_dp_rank" in spans:
            fields.rank_spans = (spans["routed_dp_rank"],)
        raws = {name: raw(body, span) for name, span in spans.items()}
        rids = spans.get("rid")
        if rids is not None and rids[1] - rids[0] > _RIDS and body.startswith(b"[", rids[0]):
            raise too_many_rids()
        ids = yield from _scan_lists(fields, body, spans)
        sampling = spans.get("sampling_params")
        if sampling is None or not _is_large(sampling):
            fill(fields, raws)
        else:
            del raws["sampling_params"]
            fill(fields, raws)
            yield from _sampling(fields, body, sampling)
        request = validate(fields, ids, body, headers)
        if vocab_size is not None:
            yield from check_in_steps(body, fields.id_spans, vocab_size)
        return request
    except (msgspec.DecodeError, RecursionError) as error:
        raise unreadable(error) from error


def _scan_lists(fields: LargeBodyFields, body: bytes, spans: Mapping[str, Span]) -> Steps[PromptIds | None]:
    """Set the flags of long lists; return the count of ``input_ids`` if that is a long list."""
    for name in _LISTS:
        span = spans.get(name)
        if span is not None and _is_large(span) and body.startswith(b"[", span[0]):
            fields.entry_flags[name] = yield from _flags_of(body, span, name)
    span = spans.get("input_ids")
    if span is None or not _is_large(span):
        return None
    ids = PromptIds()
    for piece in pieces(body, span):
        ids.add(piece)
        yield
    return ids


def _flags_of(body: bytes, span: Span, name: str) -> Steps[EntryFlags]:
    found: list[Span] = []
    known = bytearray()
    for _ in entries_of(body, span, found):
        known += bytes([is_flagged(name, raw(body, entry)) for entry in found])
        found.clear()
        yield
    return known


def _sampling(fields: LargeBodyFields, body: bytes, span: Span) -> Steps[None]:
    """Read the sampling parameters, or a list of them one by one. Raises InvalidRequest."""
    if not body.startswith(b"[", span[0]):
        fields.sampling_params = yield from _one_sampling(body, span)
        return
    found: list[Span] = []
    fields.sampling_list = SamplingList()
    for _ in entries_of(body, span, found):
        for number, entry in enumerate(found):
            fields.sampling_list.add((yield from _one_sampling(body, entry)))
            if number % _ENTRIES == _ENTRIES - 1:
                yield
        found.clear()
        yield


def _one_sampling(body: bytes, span: Span) -> Steps[Sampling]:
    start, end = span
    if end - start <= _SHORT or not body.startswith(b"{", start):
        return sampling_of(raw(body, span))
    found = yield from members_of(body, span, _SAMPLING)
    parts = [b'"%b":%b' % (name.encode(), body[slice(*value)]) for name, value in found.items()]
    return sampling_of(msgspec.Raw(b"{%b}" % b",".join(parts)))


def _is_large(span: Span | None) -> bool:
    return span is not None and span[1] - span[0] > STEPWISE_SIZE
