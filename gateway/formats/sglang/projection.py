"""Parsing a generate body: what routing needs to know of it, and which bodies are refused.

Owns: the meaning of the fields that are read, and the refusals (rules of SGLang 0.5.22). Must never enter:
changing a body, anything about a reply.

Three kinds of body are refused; the engine judges all others in its own words. First, those the gateway
itself cannot understand: no JSON object, or a ``stream``, ``rid``, ``n`` or batch of the wrong shape. Second,
fields that only a router may set. Third, input that crashes the engine or makes it answer 500, and that its
other server, which is written in Rust, does not accept either.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from operator import attrgetter

import msgspec

from gateway.errors import InvalidRequest
from gateway.formats.contract import UNKNOWN_LENGTH, Headers, Projection
from gateway.formats.sglang.body_fields import (
    MEDIA,
    PER_PROMPT,
    RESERVED,
    entry_flags,
    is_flagged,
    read_fields,
)
from gateway.formats.sglang.hints import RANK_HEADER, field_rank, hints_of, model_of, rank_of, session_of
from gateway.formats.sglang.prompt_ids import MOST_LENGTHS, PromptIds
from gateway.formats.sglang.raw_members import NULL
from gateway.formats.sglang.request import (
    ABSENT,
    BodyFields,
    LargeBodyFields,
    Sampling,
    SamplingList,
    SglangRequest,
)

_LIST_OF_MATRICES = re.compile(rb"\[\s*\[\s*\[")
_NO_EMBEDS = re.compile(rb"\[\s*(?:\[\s*)?\]")
# The engine aborts every request whose id begins with an aborted id, and the gateway cannot know the ids that
# the engine creates: 32 hex digits for the samples of n > 1 (a few hex digits could be their prefix) and
# HEALTH_CHECK_... for its own probes.
_UNSAFE_ID = re.compile(r"[0-9a-f]{1,4}|HEALTH_CHECK.*", re.DOTALL)

_reserved = attrgetter(*RESERVED)
_per_prompt = attrgetter(*PER_PROMPT)
# With one of these a prompt is longer than its ids, or has none.
_beside_ids = attrgetter("session_params", "input_embeds", "image_data", "video_data", "audio_data")
_NOTHING_RESERVED = (ABSENT,) * len(RESERVED)
_NOTHING_PER_PROMPT = (ABSENT,) * len(PER_PROMPT)
_NOTHING_BESIDE_IDS = (ABSENT,) * 5


def parse(body: bytes, headers: Headers) -> SglangRequest:
    """Return the request in ``body``. Raises InvalidRequest, and nothing else."""
    try:
        fields, ids = read_fields(body)
        return validate(fields, ids, body, headers)
    except (msgspec.DecodeError, RecursionError) as error:
        raise unreadable(error) from error


#: The most ids that one request may name; see docs/ids-and-headers.md.
MOST_RIDS = 16384


def unreadable(error: Exception) -> InvalidRequest:
    return InvalidRequest(f"The request body cannot be read as JSON: {error}.", cause=error)


def project(request: SglangRequest) -> Projection:
    """Return what routing, ids and metrics may know of ``request``."""
    ids = request.ids
    return Projection(  # in the order of its fields: to name them doubles its price
        request.stream,
        ids,
        # A session finds its earlier turns by their ids, so these are not replaced.
        not ids or request.in_session or not any(map(_UNSAFE_ID.fullmatch, ids)),
        "rid",
        request.model,
        request.prompt_tokens,
        request.max_tokens,
        request.samples,
        partial(hints_of, request.fields, request.headers),
        request.fields.rid_cuts if isinstance(request.fields, LargeBodyFields) else None,
        session_of(request.fields) if request.in_session else None,
        request.longest,
    )


def validate(fields: BodyFields, ids: PromptIds | None, body: bytes, headers: Headers) -> SglangRequest:
    """Validate ``fields`` and return the request. ``ids`` is the count of ``input_ids``, None: not counted
    yet.

    Raises InvalidRequest and msgspec.DecodeError.
    """
    if _reserved(fields) != _NOTHING_RESERVED:
        _check_reserved(fields)
    batch, ids = _prompts(fields, ids)
    samples_per_prompt, max_tokens, limits = _sampling(fields, batch)
    longest, tokens = UNKNOWN_LENGTH, None
    if ids is not None:
        tokens = ids.tokens
        beside = _beside_ids(fields)
        if beside == _NOTHING_BESIDE_IDS or all(map(_missing, beside)):
            flat = not ids.nested and limits is None
            longest = (
                (tokens, tokens + (max_tokens or 1)) if flat else _longest(ids, batch, max_tokens, limits)
            )
    if isinstance(fields.rid, list):
        _check_rids(fields.rid, batch, samples_per_prompt)
    if fields.logprob_start_len is not ABSENT:
        _check_logprob_starts(fields)
    if batch is not None and _per_prompt(fields) != _NOTHING_PER_PROMPT:
        _check_lengths(fields, batch)
    large = fields if isinstance(fields, LargeBodyFields) else None
    first = dict(reversed(headers))  # the first value of each name
    rank = first.get(RANK_HEADER)
    return SglangRequest(
        body=body,
        headers=headers,
        stream=fields.stream,
        rid=fields.rid,
        ids=_client_ids(fields.rid, batch, first.get(b"x-request-id")),
        batch=batch,
        samples_per_prompt=samples_per_prompt,
        prompt_tokens=tokens,
        max_tokens=max_tokens,
        in_session=_in_session(fields),
        model=model_of(fields),
        fields=fields,
        samples=samples_per_prompt if batch is None else batch * samples_per_prompt,
        rid_spans=None if large is None else large.rid_spans,
        rank=None if rank is None else _new_rank(fields, rank),
        rank_spans=() if large is None else large.rank_spans,
        longest=longest,
    )


def _check_reserved(fields: BodyFields) -> None:
    for key in RESERVED:
        if not _missing(getattr(fields, key)):
            raise InvalidRequest(f"{key} is set by the router, not by clients.", param=key)


def _new_rank(fields: BodyFields, value: bytes) -> int | None:
    """Return the rank to be set in the body: that of the header, whose value is ``value``, as on the engine's
    other routes; None if the body names the same.
    """
    rank = rank_of(value)
    if rank is None:
        raise InvalidRequest(
            "X-Data-Parallel-Rank must be a data-parallel rank: 0, 1, 2 ...", param="X-Data-Parallel-Rank"
        )
    return None if rank == field_rank(fields) else rank


def _crash(rule: str, message: str, param: str) -> InvalidRequest:
    """Return the refusal of input that would crash the engine with all requests that run on it."""
    return InvalidRequest(message, param=param, rule=rule)


def _client_ids(
    rid: str | list[str] | None | msgspec.UnsetType, batch: int | None, value: bytes | None
) -> tuple[str, ...]:
    """Return the ids that the client gave: those of the body, or else ``value``, its X-Request-Id."""
    if isinstance(rid, str):
        return (rid,)
    if isinstance(rid, list):
        return tuple(rid)
    if batch is not None or value is None or not (value := value.strip()):
        return ()
    try:
        return (value.decode(),)
    except UnicodeDecodeError:
        return (value.decode("latin-1"),)


# The prompt: the number of texts is the batch size; the model gets the ids where both are given.


def _prompts(fields: BodyFields, ids: PromptIds | None) -> tuple[int | None, PromptIds | None]:
    """Return (number of prompts, None for a single one; the count of their ids, None without ids)."""
    if fields.input_ids is ABSENT or fields.input_ids == NULL:
        return (_embeds(fields) if _missing(fields.text) else _texts(fields)), None
    batch, ids = _token_ids(fields, ids)
    if not _missing(fields.text):
        batch = _texts_and_ids(fields, batch)
    return batch, ids


def _token_ids(fields: BodyFields, found: PromptIds | None) -> tuple[int | None, PromptIds]:
    """Return the rows (None for one flat list) and the count of ``input_ids``."""
    if found is None:
        found = PromptIds()
        found.add(bytes(fields.input_ids))
    if found.negative:
        raise _crash("negative_token_id", "input_ids must not hold a negative id.", "input_ids")
    if not found.nested:
        return None, found
    if found.empty and not _in_session(fields):
        raise _crash("empty_batch_item", "No item of a batch of input_ids may be empty.", "input_ids")
    return found.rows, found


def _longest(
    ids: PromptIds, batch: int | None, max_tokens: int | None, limits: Sequence[int] | None
) -> tuple[int, int]:
    """Return the length of the prompt that is longest with its reply (gateway.formats.contract.Projection).

    ``limits`` are those of the replies, if each prompt has its own.
    """
    if ids.nested and ids.rows != batch:
        return UNKNOWN_LENGTH  # some rows belong to no prompt
    if limits is None:
        return ids.longest, ids.longest + (max_tokens or 1)
    if batch is not None and batch > MOST_LENGTHS:
        return ids.longest, ids.longest + 1
    lengths = ids.lengths[:batch] if ids.nested else [ids.tokens]
    total, prompt = max((length + limit, length) for length, limit in zip(lengths, limits, strict=False))
    return prompt, total


def _texts(fields: BodyFields) -> int | None:
    texts = entry_flags(fields, "text")
    if is_flagged("text", fields.text) if texts is None else 1 in texts:
        # For some models audio alone is a prompt, and a session may contain all of the prompt.
        media = (fields.image_data, fields.video_data, fields.audio_data)
        if all(map(_missing, media)) and not _in_session(fields):
            raise _crash("empty_text", "text must not be empty.", "text")
    return None if texts is None else len(texts)


def _in_session(fields: BodyFields) -> bool:
    return not _missing(fields.session_params)


def _texts_and_ids(fields: BodyFields, rows: int | None) -> int | None:
    texts = entry_flags(fields, "text")
    if (texts is None) != (rows is None) or (rows is not None and texts is not None and len(texts) > rows):
        raise InvalidRequest("text and input_ids must hold the same number of prompts.", param="text")
    return None if texts is None else len(texts)


def _embeds(fields: BodyFields) -> int | None:
    if _missing(fields.input_embeds):
        return None
    if _NO_EMBEDS.match(fields.input_embeds):
        raise InvalidRequest("input_embeds must not be empty.", param="input_embeds")
    if _LIST_OF_MATRICES.match(fields.input_embeds) is None:
        return None
    return len(entry_flags(fields, "input_embeds") or ())


def _missing(raw: msgspec.Raw) -> bool:
    return raw is ABSENT or raw == NULL


# Sampling, and everything else that must match the number of prompts.


def _sampling(fields: BodyFields, batch: int | None) -> tuple[int, int | None, Sequence[int] | None]:
    """Return (samples of each prompt; the token limit, None where it is left open; if each prompt has a limit
    of its own, all of them).
    """
    params = fields.sampling_params
    if isinstance(params, Sampling):
        return _samples_per_prompt(params, batch), params.max_new_tokens, None
    several = fields.sampling_list if isinstance(fields, LargeBodyFields) else None
    if several is None:
        if params is None:
            return 1, None, None
        several = SamplingList(params)
    if not several.count or (batch is not None and several.count < batch):
        raise InvalidRequest("sampling_params must have an entry for each prompt.", param="sampling_params")
    # The Rust server accepts a list for a single prompt; the Python server answers it with a 500.
    return _samples_per_prompt(several.first, batch), several.max_new_tokens, several.limits


def _samples_per_prompt(params: Sampling, batch: int | None) -> int:
    # The beams of a beam search are one reply, whatever n is.
    if params.beam_width is not None and params.beam_width > 1:
        return 1
    if params.n < 1 and batch is not None:
        raise InvalidRequest("sampling_params.n must be at least 1.", param="sampling_params.n")
    return max(1, params.n)


def too_many_rids() -> InvalidRequest:
    """Return the refusal of a long list of rids: each is indexed, and a million would block the event
    loop.
    """
    limit = f"{MOST_RIDS} entries and 1 MiB"
    return InvalidRequest(
        f"A list of rids may have {limit} at most; one rid will do for a batch.", param="rid"
    )


def _check_rids(rids: list[str], batch: int | None, samples_per_prompt: int) -> None:
    if batch is None and samples_per_prompt == 1:
        # Neither server accepts it, and the Python server breaks the stream off.
        raise InvalidRequest("rid must be a string for a single prompt.", param="rid")
    if len(rids) > MOST_RIDS:
        raise too_many_rids()
    if len(rids) != (1 if batch is None else batch):
        raise InvalidRequest("A list of rids must have one for each prompt.", param="rid")
    if len(set(rids)) != len(rids):
        raise InvalidRequest("The rids of a batch must differ.", param="rid")


def _check_logprob_starts(fields: BodyFields) -> None:
    """Refuse a start below -1 where logprobs are wanted; elsewhere the engine ignores it."""
    below = entry_flags(fields, "logprob_start_len")
    wanted = entry_flags(fields, "return_logprob")
    if below is None:
        single = is_flagged("logprob_start_len", fields.logprob_start_len)
        below = bytes([single]) * (1 if wanted is None else len(wanted))
    if wanted is None:
        wanted = bytes([is_flagged("return_logprob", fields.return_logprob)]) * len(below)
    # One comparison for all entries.
    if int.from_bytes(below, "little") & int.from_bytes(wanted, "little"):
        raise _crash(
            "logprob_start_below_minus_one", "logprob_start_len must be at least -1.", "logprob_start_len"
        )


def _check_lengths(fields: BodyFields, batch: int) -> None:
    for key, raw in zip(PER_PROMPT, _per_prompt(fields), strict=True):
        entries = None if raw is ABSENT else entry_flags(fields, key)
        if entries is not None and len(entries) < batch and (entries or key not in MEDIA):
            raise InvalidRequest(f"{key} must have an entry for each prompt.", param=key)
