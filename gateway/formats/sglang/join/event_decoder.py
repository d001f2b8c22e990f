"""Fast decoding of a stream's ordinary events, which differ only in what was generated.

Owns: decoders that know all member names of an event, one for each set of names. Must never enter: what
becomes of a member.

Nearly all events of a long stream have the same members as the one before, no finish reason and the same
prompt counts. A decoder that accepts these and nothing else recognises such an event in one call.
"""

from __future__ import annotations

from functools import lru_cache
from operator import attrgetter
from typing import Any

import msgspec

from gateway.formats.sglang.join.rules import META, TOP, MergeRule
from gateway.formats.sglang.raw_members import Members, RawEvent

#: Counts that an ordinary event must have as integers.
PROMPT_COUNTS = ("prompt_tokens", "cached_tokens")
TOTAL = "completion_tokens"

_MOST_NAMES = 64


class EventDecoder:
    """A decoder of events with exactly these members. ``decode`` raises msgspec.DecodeError for any other
    event.

    ``top_lists``, ``meta_lists`` and ``totals`` name the APPEND and the MOST members, each with the function
    that takes its value out of a decoded event.
    """

    def __init__(self, top: tuple[str, ...], meta: tuple[str, ...]) -> None:
        inner = _struct(meta, {name: _type(name) for name in meta})
        outer = _struct(top, {name: _top_type(name, inner) for name in top})
        self.decode = msgspec.json.Decoder(outer).decode
        at = f"f{top.index('meta_info')}."
        self._top = {name: attrgetter(f"f{position}") for position, name in enumerate(top)}
        self._meta = {name: attrgetter(f"{at}f{position}") for position, name in enumerate(meta)}
        self.top_lists = [(name, self._top[name]) for name in top if TOP.get(name) is MergeRule.APPEND]
        self.meta_lists = [(name, self._meta[name]) for name in meta if META.get(name) is MergeRule.APPEND]
        self.totals = [(name, self._meta[name]) for name in meta if META.get(name) is MergeRule.MOST]
        self.total = self._meta[TOTAL]
        self.prompt = attrgetter(*(f"{at}f{meta.index(name)}" for name in PROMPT_COUNTS))
        self.index = self._top.get("index", lambda _: 0)

    def event(self, decoded: Any) -> RawEvent:
        """Return the members of a decoded event."""
        top = {name: take(decoded) for name, take in self._top.items() if name != "meta_info"}
        return RawEvent(_raw(top), _raw({name: take(decoded) for name, take in self._meta.items()}))


@lru_cache(_MOST_NAMES)
def decoder_for(top: tuple[str, ...], meta: tuple[str, ...]) -> EventDecoder | None:
    """Return the decoder of events with these members, None if one that is needed is missing."""
    usual = TOTAL in meta and all(name in meta for name in PROMPT_COUNTS) and "error" not in top
    return EventDecoder(top, meta) if usual else None


def _struct(names: tuple[str, ...], types: dict[str, Any]) -> type[msgspec.Struct]:
    fields = [(f"f{position}", types[name]) for position, name in enumerate(names)]
    rename = {f"f{position}": name for position, name in enumerate(names)}
    return msgspec.defstruct("Members", fields, rename=rename, forbid_unknown_fields=True, gc=False)


def _type(name: str) -> Any:
    if name == "finish_reason":
        return None
    return int if name in PROMPT_COUNTS or META.get(name) is MergeRule.MOST else msgspec.Raw


def _top_type(name: str, inner: type[msgspec.Struct]) -> Any:
    if name == "meta_info":
        return inner
    return int if name == "index" else msgspec.Raw


def _raw(members: dict[str, Any]) -> Members:
    return {
        name: value if isinstance(value, msgspec.Raw) else msgspec.Raw(msgspec.json.encode(value))
        for name, value in members.items()
    }
