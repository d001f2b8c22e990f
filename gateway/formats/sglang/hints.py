"""What a request says that only routing wants to know, read when it does.

Owns: those few values, each typed if it is what it usually is and else as if it were not there: what the
engine thinks of it is the engine's to say. Must never enter: refusing anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TypeVar

import msgspec

from gateway.formats.contract import Headers, header
from gateway.formats.routing_hints import Hints
from gateway.formats.sglang.raw_members import NULL
from gateway.formats.sglang.request import ABSENT, BodyFields

T = TypeVar("T")

_RANK = b"x-data-parallel-rank"
_RANKS = 2**32

_text = msgspec.json.Decoder(str)
_number = msgspec.json.Decoder(int)
_ids = msgspec.json.Decoder(list[int])
_rows = msgspec.json.Decoder(list[msgspec.Raw])


def model_of(fields: BodyFields) -> str | None:
    return _typed(_text, fields.model) or None


def hints_of(fields: BodyFields, headers: Headers) -> Hints:
    """Total: a value of another type than usual is none."""
    without_ids = fields.input_ids is ABSENT or fields.input_ids == NULL
    return Hints(
        priority=_typed(_number, fields.priority) or 0,
        lora=_typed(_text, fields.lora_path) or None,
        cache_salt=_typed(_text, fields.cache_salt) or None,
        dp_rank=_rank(header(headers, _RANK)),
        token_ids=None if without_ids else partial(_token_ids, fields.input_ids),
    )


def _token_ids(input_ids: msgspec.Raw) -> Sequence[int]:
    """The first prompt's ids; () where the engine will find they are none."""
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


def _rank(value: bytes | None) -> int | None:
    """A rank is 32 bits, without a sign; anything else is ignored."""
    digits = b"" if value is None else value.strip()
    if not digits.isdigit() or len(digits) > len(str(_RANKS)):
        return None
    return rank if (rank := int(digits)) < _RANKS else None
