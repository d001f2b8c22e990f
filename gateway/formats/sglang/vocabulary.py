"""Token ids that crash an engine because its model has no such token.

Owns: the fields of a request in which an id or a count is compared with the size of the vocabulary (SGLang
0.5.22). Must never enter: finding out that size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from itertools import chain

import msgspec

from gateway.errors import InvalidRequest
from gateway.formats.json.steps import Steps
from gateway.formats.json.windows import Span, pieces
from gateway.formats.sglang.request import ABSENT

_BLANKED = bytes.maketrans(b"[]", b"  ")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]"))
#: The brackets that may be left of a number, a list or a list of lists, up to any place in it.
_TWO_LEVELS = (b"", b"[", b"[[", b"[]")
_NO_ENTRY = re.compile(rb",\s*(?=,)")
_Number = int | float | None


class KnownMembers(msgspec.Struct):
    input_ids: msgspec.Raw = ABSENT
    token_ids_logprob: msgspec.Raw = ABSENT
    top_logprobs_num: msgspec.Raw = ABSENT


_members = msgspec.json.Decoder(KnownMembers).decode
_flat = msgspec.json.Decoder(list[int]).decode
_any = msgspec.json.Decoder(_Number | list[_Number | list[_Number]]).decode


def check(body: bytes, size: int) -> None:
    """Refuse ids of ``size`` and above, and more top logprobs than there are tokens. Raises InvalidRequest.

    ``body`` is a JSON object that was parsed already. Numbers in a shape that the engine does not accept are
    ignored, as it refuses them itself.
    """
    members = _members(body)
    for name in KnownMembers.__struct_fields__:
        _check(name, _ends(getattr(members, name)), size)


def _check(name: str, ends: Iterable[int | float], size: int) -> None:
    if name != "top_logprobs_num":
        if any(number < 0 or number >= size for number in ends):
            raise InvalidRequest(
                f"{name} must hold ids of the model's vocabulary, 0 to {size - 1}.",
                param=name,
                rule="token_id_outside_vocabulary",
            )
    elif any(number > size for number in ends):
        raise InvalidRequest(
            f"top_logprobs_num must not be over {size}, the size of the model's vocabulary.",
            param="top_logprobs_num",
            rule="top_logprobs_over_vocabulary",
        )


def check_in_steps(body: bytes, spans: Mapping[str, Span], size: int) -> Steps[None]:
    """Check a large body whose members are at ``spans``, in steps of a few milliseconds. Raises
    InvalidRequest.
    """
    for name in KnownMembers.__struct_fields__:
        if name in spans:
            ends: list[int | float] = []
            brackets = b""
            for piece in pieces(body, spans[name]):
                found = list(_ends(msgspec.Raw(_flattened(piece))))
                brackets = (brackets + piece.translate(None, _NOT_BRACKETS)).replace(b"[]", b"")
                if not found or brackets not in _TWO_LEVELS:
                    ends.clear()
                    break  # numbers of another shape, or none
                ends = [min(found + ends), max(found + ends)]
                yield
            _check(name, ends, size)


def _flattened(piece: bytes) -> bytes:
    """Return a part of a list, or of a list of lists, as one list."""
    return b"[%b]" % _NO_ENTRY.sub(b"", piece.translate(_BLANKED).strip(b", \t\r\n"))


def _ends(raw: msgspec.Raw) -> Iterable[int | float]:
    """Return the smallest and the largest number in ``raw``, at any depth where the engine accepts one."""
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
