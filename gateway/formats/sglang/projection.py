"""What the gateway reads of a request for ``/generate``, and what it refuses.

Owns: the peek (typed where routing and safety need it, raw or skipped elsewhere) and the refusals. Must never
enter: changing a body, anything about a reply.

Three kinds of body are refused; all else goes to the engine, whose own words then reach the client. First,
what the gateway itself cannot understand: no JSON object, or a ``stream``, ``rid``, ``n`` or batch of the
wrong shape. Second, keys that belong to whoever routes. Third, what ends the engine's process or makes it
answer 500.
"""

from __future__ import annotations

import re
from functools import partial
from operator import attrgetter

import msgspec

from gateway.errors import InvalidRequest
from gateway.formats.contract import Headers, Projection, header
from gateway.formats.sglang.body_fields import PER_PROMPT, RESERVED, entry_flags, is_flagged, read_fields
from gateway.formats.sglang.hints import hints_of, model_of
from gateway.formats.sglang.prompt_ids import PromptIds
from gateway.formats.sglang.raw_members import NULL
from gateway.formats.sglang.request import (
    ABSENT,
    BodyFields,
    LargeBodyFields,
    Sampling,
    SamplingList,
    SglangRequest,
)

_RANKS = frozenset({"data_parallel_rank", "routed_dp_rank"})
_LIST_OF_MATRICES = re.compile(rb"\[\s*\[\s*\[")
_NO_EMBEDS = re.compile(rb"\[\s*(?:\[\s*)?\]")
# The engine ends every request whose id begins with an aborted one, and it makes ids the gateway cannot know:
# 32 hex digits for the samples of n > 1 (a few hex digits could be their beginning) and HEALTH_CHECK_... for
# its probes, whose ids it also treats in its own way.
_UNSAFE_ID = re.compile(r"[0-9a-f]{1,4}|HEALTH_CHECK.*", re.DOTALL)

_reserved = attrgetter(*RESERVED)
_per_prompt = attrgetter(*PER_PROMPT)
_NOTHING_RESERVED = (ABSENT,) * len(RESERVED)
_NOTHING_PER_PROMPT = (ABSENT,) * len(PER_PROMPT)


def parse(body: bytes, headers: Headers) -> SglangRequest:
    """Peek at ``body``. Raises InvalidRequest, and nothing else."""
    try:
        fields, ids = read_fields(body)
        return read(fields, ids, body, headers)
    except (msgspec.DecodeError, RecursionError) as error:
        raise unreadable(error) from error


#: So many ids may one request name; see docs/ids-and-headers.md.
MOST_RIDS = 16384


def unreadable(error: Exception) -> InvalidRequest:
    return InvalidRequest(f"The request body cannot be read as JSON: {error}.", cause=error)


def project(request: SglangRequest) -> Projection:
    """What routing, ids and metrics may know."""
    ids = request.ids
    return Projection(  # in the order of its fields: to name them doubles its price
        request.stream,
        ids,
        # A session finds its earlier turns by the ids they had, so these keep theirs.
        not ids or request.in_session or not any(map(_UNSAFE_ID.fullmatch, ids)),
        "rid",
        request.model,
        request.prompt_tokens,
        request.max_tokens,
        request.samples,
        partial(hints_of, request.fields, request.headers),
        request.fields.rid_cuts if isinstance(request.fields, LargeBodyFields) else None,
    )


def read(fields: BodyFields, ids: PromptIds | None, body: bytes, headers: Headers) -> SglangRequest:
    """Judge what was peeked at; ``ids``: what is known of ``input_ids`` already.

    Raises InvalidRequest and msgspec.DecodeError.
    """
    if _reserved(fields) != _NOTHING_RESERVED:
        raise _reserved_key(fields)
    batch, prompt_tokens = _prompts(fields, ids)
    samples_per_prompt, max_tokens = _sampling(fields, batch)
    if isinstance(fields.rid, list):
        _check_rids(fields.rid, batch, samples_per_prompt)
    if fields.logprob_start_len is not ABSENT:
        _check_logprob_starts(fields)
    if batch is not None and _per_prompt(fields) != _NOTHING_PER_PROMPT:
        _check_lengths(fields, batch)
    return SglangRequest(
        body=body,
        headers=headers,
        stream=fields.stream,
        rid=fields.rid,
        ids=_named(fields.rid, batch, headers),
        batch=batch,
        samples_per_prompt=samples_per_prompt,
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        in_session=_in_session(fields),
        model=model_of(fields),
        fields=fields,
        samples=samples_per_prompt if batch is None else batch * samples_per_prompt,
        rid_spans=fields.rid_spans if isinstance(fields, LargeBodyFields) else None,
    )


def _reserved_key(fields: BodyFields) -> InvalidRequest:
    key = next(key for key in RESERVED if getattr(fields, key) is not ABSENT)
    hint = " Name a rank by the header X-Data-Parallel-Rank." if key in _RANKS else ""
    return InvalidRequest(f"{key} is set by whoever routes requests, not by clients.{hint}", param=key)


def _kill(rule: str, message: str, param: str) -> InvalidRequest:
    """The refusal of what ends the engine's process, whoever else's requests are running there."""
    return InvalidRequest(message, param=param, rule=rule)


def _named(
    rid: str | list[str] | None | msgspec.UnsetType, batch: int | None, headers: Headers
) -> tuple[str, ...]:
    if isinstance(rid, str):
        return (rid,)
    if isinstance(rid, list):
        return tuple(rid)
    if batch is not None:
        return ()
    value = header(headers, b"x-request-id")
    if value is None or not (value := value.strip()):
        return ()
    try:
        return (value.decode(),)
    except UnicodeDecodeError:
        return (value.decode("latin-1"),)


# The prompt: text decides how many there are, ids are what the model gets when both are given.


def _prompts(fields: BodyFields, ids: PromptIds | None) -> tuple[int | None, int | None]:
    """(number of prompts or None for a single one, number of prompt ids or None where there are none)."""
    if fields.input_ids is ABSENT or fields.input_ids == NULL:
        return (_embeds(fields) if _missing(fields.text) else _texts(fields)), None
    batch, tokens = _token_ids(fields, ids)
    if not _missing(fields.text):
        batch = _both(fields, batch)
    return batch, tokens


def _token_ids(fields: BodyFields, found: PromptIds | None) -> tuple[int | None, int]:
    """Rows (None for one flat list) and ids of ``input_ids``."""
    if found is None:
        found = PromptIds()
        found.add(bytes(fields.input_ids))
    if found.negative:
        raise _kill("negative_token_id", "input_ids must not hold a negative id.", "input_ids")
    if not found.nested:
        return None, found.tokens
    if found.empty and not _in_session(fields):
        raise _kill("empty_batch_item", "No item of a batch of input_ids may be empty.", "input_ids")
    return found.rows, found.tokens


def _texts(fields: BodyFields) -> int | None:
    texts = entry_flags(fields, "text")
    if (is_flagged("text", fields.text) if texts is None else 1 in texts) and not _may_be_empty(fields):
        raise _kill("empty_text", "text must not be empty.", "text")
    return None if texts is None else len(texts)


def _may_be_empty(fields: BodyFields) -> bool:
    # Audio alone is a prompt to some models, and a session may bring all of it.
    media = (fields.image_data, fields.video_data, fields.audio_data)
    return not all(map(_missing, media)) or _in_session(fields)


def _in_session(fields: BodyFields) -> bool:
    return not _missing(fields.session_params)


def _both(fields: BodyFields, rows: int | None) -> int | None:
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


# Sampling and everything else that must fit the number of prompts.


def _sampling(fields: BodyFields, batch: int | None) -> tuple[int, int | None]:
    """(samples of each prompt, tokens asked for or None where that was left open)."""
    params = fields.sampling_params
    if isinstance(params, Sampling):
        return _samples_per_prompt(params, batch), params.max_new_tokens
    several = fields.sampling_list if isinstance(fields, LargeBodyFields) else None
    if several is None:
        if params is None:
            return 1, None
        several = SamplingList(params)
    if not several.count or (batch is not None and several.count < batch):
        raise InvalidRequest("sampling_params must have an entry for each prompt.", param="sampling_params")
    samples_per_prompt = _samples_per_prompt(several.first, batch)
    if batch is None and samples_per_prompt == 1:
        raise InvalidRequest(
            "sampling_params must be an object for a single prompt.", param="sampling_params"
        )
    return samples_per_prompt, several.most


def _samples_per_prompt(params: Sampling, batch: int | None) -> int:
    # Beams come back as one reply, whatever n says.
    if params.beam_width is not None and params.beam_width > 1:
        return 1
    if params.n < 1 and batch is not None:
        raise InvalidRequest("sampling_params.n must be at least 1.", param="sampling_params.n")
    return max(1, params.n)


def too_many_rids() -> InvalidRequest:
    """Each is filed by itself, and a list of a million would keep the gateway from all else."""
    limit = f"{MOST_RIDS} entries and 1 MiB"
    return InvalidRequest(
        f"A list of rids may have {limit} at most; one rid will do for a batch.", param="rid"
    )


def _check_rids(rids: list[str], batch: int | None, samples_per_prompt: int) -> None:
    if batch is None and samples_per_prompt == 1:
        raise InvalidRequest("rid must be a string for a single prompt.", param="rid")
    if len(rids) > MOST_RIDS:
        raise too_many_rids()
    if len(rids) != (1 if batch is None else batch):
        raise InvalidRequest("A list of rids must have one for each prompt.", param="rid")
    if len(set(rids)) != len(rids):
        raise InvalidRequest("The rids of a batch must differ.", param="rid")


def _check_logprob_starts(fields: BodyFields) -> None:
    """Refuse a start below -1 where logprobs are asked for; elsewhere the engine does not look at it."""
    below = entry_flags(fields, "logprob_start_len")
    wanted = entry_flags(fields, "return_logprob")
    if below is None:
        single = is_flagged("logprob_start_len", fields.logprob_start_len)
        below = bytes([single]) * (1 if wanted is None else len(wanted))
    if wanted is None:
        wanted = bytes([is_flagged("return_logprob", fields.return_logprob)]) * len(below)
    # Entry by entry, all at once.
    if int.from_bytes(below, "little") & int.from_bytes(wanted, "little"):
        raise _kill(
            "logprob_start_below_minus_one", "logprob_start_len must be at least -1.", "logprob_start_len"
        )


def _check_lengths(fields: BodyFields, batch: int) -> None:
    for key, raw in zip(PER_PROMPT, _per_prompt(fields), strict=True):
        entries = None if raw is ABSENT else entry_flags(fields, key)
        if entries is not None and len(entries) < batch:
            raise InvalidRequest(f"{key} must have an entry for each prompt.", param=key)
