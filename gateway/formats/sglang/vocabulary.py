"""What would end an engine that has no such token.

Owns: the places of a request where an id or a count is held against the size of the vocabulary. Must never
enter: knowing that size; no probe tells it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import msgspec

from gateway.errors import InvalidRequest
from gateway.formats.sglang.peek import ABSENT

_Number = int | float | None


class Members(msgspec.Struct):
    input_ids: msgspec.Raw = ABSENT
    token_ids_logprob: msgspec.Raw = ABSENT
    top_logprobs_num: msgspec.Raw = ABSENT


_members = msgspec.json.Decoder(Members).decode
_flat = msgspec.json.Decoder(list[int]).decode
_any = msgspec.json.Decoder(_Number | list[_Number | list[_Number]]).decode


def check(body: bytes, size: int) -> None:
    """Refuse ids of ``size`` and over, and more top logprobs than there are tokens.

    ``body`` is a JSON object that was peeked at already. Raises InvalidRequest. On numbers of another shape
    than the engine takes nothing is said here, as it refuses them itself.
    """
    members = _members(body)
    for name in ("input_ids", "token_ids_logprob"):
        if any(number < 0 or number >= size for number in _ends(getattr(members, name))):
            raise InvalidRequest(
                f"{name} must hold ids of the model's vocabulary, 0 to {size - 1}.",
                param=name,
                rule="token_id_outside_vocabulary",
            )
    if any(number > size for number in _ends(members.top_logprobs_num)):
        raise InvalidRequest(
            f"top_logprobs_num must not be over {size}, the size of the model's vocabulary.",
            param="top_logprobs_num",
            rule="top_logprobs_over_vocabulary",
        )


def _ends(raw: msgspec.Raw) -> Iterable[int | float]:
    """The smallest and the largest number in ``raw``, at whatever depth the engine takes one."""
    if raw is ABSENT:
        return ()
    numbers = _numbers(raw)
    return (min(numbers), max(numbers)) if numbers else ()


def _numbers(raw: msgspec.Raw) -> list[int] | list[int | float]:
    try:
        return _flat(raw)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        found = _any(raw)
    except (msgspec.DecodeError, RecursionError):
        return []
    rows = (
        each if isinstance(each, list) else [each] for each in (found if isinstance(found, list) else [found])
    )
    return [number for number in chain.from_iterable(rows) if number is not None]
