"""The id of an exchange: how a client names it, how the engine spells it, how it is mapped back.

Owns: the engine's prefixes (vLLM 0.33.0), the test of a name as a header value, the rewriting of
``request_id`` in replies. Must never enter: choosing ids (the gateway's matter), HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from gateway.formats.contract import Ids
from gateway.formats.optional import AbortTarget, EngineId

#: The engine puts this before the id it receives, in replies and in aborts.
PREFIX = "generate-tokens-"

#: Relayed route -> the prefix of its ids, and True if the engine appends the number of each prompt.
_SPELLINGS: Mapping[str, tuple[str, bool]] = MappingProxyType(
    {"/v1/chat/completions": ("chatcmpl-", False), "/v1/completions": ("cmpl-", True)}
)
_NUMBERED = re.compile(r"(.*)-(0|[1-9][0-9]{0,8})", re.DOTALL)

#: Characters. A longer name is not put into a header.
NAME_LIMIT = 1024

_HEADER_SAFE = re.compile(r"[!-~](?:[ -~]*[!-~])?")
# Engines write no spaces around the colon; a proxy in between might. A line end in the string ends the match,
# so that a broken event changes nothing of the next one.
_BLANKS = 8
_MEMBER = re.compile(
    rb'("request_id"[ \t\r\n]{0,%d}:[ \t\r\n]{0,%d})("[^"\\\x00-\x1f]*")' % (_BLANKS, _BLANKS)
)


def fits_header(name: str) -> bool:
    """Return True if the engine would read ``name`` unchanged from a header line."""
    return len(name) <= NAME_LIMIT and _HEADER_SAFE.fullmatch(name) is not None


def engine_id(dispatch: str) -> str:
    """Return the engine's id of the exchange."""
    return PREFIX + dispatch


def engine_ids_at(path: str, ids: Ids, *, one_prompt: bool) -> list[str]:
    """Return the engine's ids of a request to a relayed route, or of its parts; [] where they are not known.

    ``one_prompt``: it has one prompt. All replies to a prompt have the same id.
    """
    if path not in _SPELLINGS:
        return []
    before, numbered = _SPELLINGS[path]
    name = before + ids.dispatch[0]
    if not numbered:
        return [] if ids.parts else [name]
    parts = ids.parts or (0,)
    if one_prompt:
        return [f"{name}-0"] if 0 in parts else []
    return [f"{name}-{part}" for part in ids.parts]


def abort_target(names: Sequence[str]) -> AbortTarget:
    """Return what a client's abort means by ``names``: the engine's ids or, where the engine has no such
    id, the client's own.
    """
    ids, engine_ids = [], []
    for name in names:
        found = _engine_id(name)
        if found is None:
            ids.append(name)
        else:
            engine_ids.append(found)
    return AbortTarget(ids=tuple(ids), engine_ids=tuple(engine_ids))


def _engine_id(name: str) -> EngineId | None:
    if name.startswith(PREFIX):
        return EngineId(name.removeprefix(PREFIX))
    for path, (before, numbered) in _SPELLINGS.items():
        if name.startswith(before):
            id = name.removeprefix(before)
            if not numbered:
                return EngineId(id, path)
            if (found := _NUMBERED.fullmatch(id)) is not None:
                return EngineId(found[1], path, int(found[2]))
    return None


class RequestIdMapper:
    """A rewriter that replaces the engine's dispatch id by the public id.

    Only the value of a ``request_id`` member is changed: connector data may repeat the engine's id, and must
    keep it. A dispatch id that differs from its public id is random, so no text of a model or a client
    contains it by chance.
    """

    __slots__ = ("_dispatch", "_longest", "_mapped", "_public", "_tail", "_usual", "_value")

    def __init__(self, ids: Ids) -> None:
        self._dispatch = ids.dispatch[0].encode()
        self._value = msgspec.json.encode(engine_id(ids.dispatch[0]))
        self._public = msgspec.json.encode(engine_id(ids.public[0]))
        self._usual = b'"request_id":' + self._value
        self._mapped = b'"request_id":' + self._public
        self._longest = len(self._usual) + 2 * _BLANKS
        self._tail = b""

    def map(self, data: bytes) -> bytes:
        """Return ``data`` with the public id; ``data`` must not cut an id in two: an event, or an entire
        body.
        """
        data = data.replace(self._usual, self._mapped)
        return _MEMBER.sub(self._replace, data) if self._dispatch in data else data

    def feed(self, data: bytes) -> bytes:
        """Return what is complete after the next piece of a body; the end is kept until ``flush``."""
        # What is kept is shorter than any member to come, and the public id does not contain the dispatch id,
        # so nothing is mapped twice.
        mapped = self.map(self._tail + data)
        cut = max(0, len(mapped) - self._longest)
        self._tail = mapped[cut:]
        return mapped[:cut]

    def flush(self) -> bytes:
        """Return what ``feed`` has kept."""
        tail, self._tail = self._tail, b""
        return tail

    def _replace(self, match: re.Match[bytes]) -> bytes:
        return match[1] + self._public if match[2] == self._value else match[0]
