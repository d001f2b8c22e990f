"""The values of a request that only routing policies need; read when a policy asks for them.

Owns: those values. One of an unusual type counts as missing, because the engine will judge it. Must never
enter: refusing a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec

from gateway.formats.contract import Headers, header
from gateway.formats.routing_hints import Hints
from gateway.formats.sglang.raw_members import NULL
from gateway.formats.sglang.request import ABSENT, BodyFields

T = TypeVar("T")

RANK_HEADER = b"x-data-parallel-rank"
_RANKS = 2**32

_text = msgspec.json.Decoder(str)
_number = msgspec.json.Decoder(int)
_object = msgspec.json.Decoder(dict[str, Any])
_ids = msgspec.json.Decoder(list[int])
_rows = msgspec.json.Decoder(list[msgspec.Raw])


def model_of(fields: BodyFields) -> str | None:
    """Return the name of the adapter that is wanted, or else that of the model; None without any."""
    if fields.lora_path is ABSENT and fields.model is ABSENT:
        return None
    return _typed(_text, fields.lora_path) or _typed(_text, fields.model) or None


def session_of(fields: BodyFields) -> str | None:
    """Return the id of the engine's session that a single request continues; None without one."""
    session = _typed(_object, fields.session_params)
    id = None if session is None else session.get("id")
    return id if isinstance(id, str) else None


def hints_of(fields: BodyFields, headers: Headers) -> Hints:
    """Return the hints of a request. Never raises: a value of an unusual type is left out."""
    rank = header(headers, RANK_HEADER)
    without_ids = fields.input_ids is ABSENT or fields.input_ids == NULL
    return Hints(
        priority=_typed(_number, fields.priority) or 0,
        lora=_typed(_text, fields.lora_path) or None,
        cache_salt=_typed(_text, fields.cache_salt) or None,
        dp_rank=field_rank(fields) if rank is None else rank_of(rank),
        token_ids=None if without_ids else partial(_token_ids, fields.input_ids),
    )


def _token_ids(input_ids: msgspec.Raw) -> Sequence[int]:
    """Return the first prompt's ids, () if the engine will refuse them."""
    if (flat := _typed(_ids, input_ids)) is not None:
        return flat
    rows = _typed(_rows, input_ids) or [ABSENT]
    return _typed(_ids, rows[0]) or []


def _typed(decoder: msgspec.json.Decoder[T], raw: msgspec.Raw) -> T | None:
    if raw is ABSENT:
        return None
    try:
        return decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError):
        return None


def field_rank(fields: BodyFields) -> int | None:
    """Return the data-parallel rank that the body names, by its present name or else by its former one."""
    rank = _typed(_number, fields.routed_dp_rank)
    if rank is None:
        rank = _typed(_number, fields.data_parallel_rank)
    return rank if rank is not None and 0 <= rank < _RANKS else None


def rank_of(value: bytes) -> int | None:
    """Return the rank in a header value: 32 bits without a sign, None for anything else."""
    digits = value.strip()
    if not digits.isdigit() or len(digits) > len(str(_RANKS)):
        return None
    return rank if (rank := int(digits)) < _RANKS else None
