"""One JSON object, merged from all the events that have it.

Owns: applying the rules of rules.py to the object of an event or to its ``meta_info``. Must never enter:
which stream is incremental, what ends a sample.

Appended values are kept as JSON text, byte for byte as they came: no value is decoded or encoded.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gateway.errors import UpstreamMalformed
from gateway.formats.sglang.join.rules import MergeRule
from gateway.formats.sglang.raw_members import NULL, Members

Appended = dict[str, bytearray]
ValueParts = dict[str, list[bytes | bytearray]]

_STRING, _COMMA, _SPACE = b'", '
_NULL = bytes(NULL)
# A longer number is no token count.
_DIGITS = 15


class MergedObject:
    """One merged object.

    ``appended`` has the JSON text of the APPEND members, without the closing bracket or quote, ``totals`` the
    totals. ``unknown`` names the lists of the latest object that have no rule, ``names`` all its members.
    """

    __slots__ = ("_gone", "_lists", "_rules", "appended", "latest", "totals", "names", "unknown")

    def __init__(self, rules: Mapping[str, MergeRule]) -> None:
        self._rules = rules
        self._lists: list[tuple[str, bytearray]] = []
        #: Members that an earlier object had and the latest does not have.
        self._gone: dict[str, bytes] = {}
        self.latest: Members = {}
        self.names: tuple[str, ...] = ()
        self.appended: Appended = {}
        self.totals: dict[str, int] = {}
        self.unknown: list[str] = []

    def add(self, members: Members, *, parts: bool) -> None:
        """Add the object of the next event; ``parts``: its APPEND members hold only what is new.

        Raises UpstreamMalformed for a member of another kind than before.
        """
        names = tuple(members)
        if names != self.names:
            self._reshape(names, members, parts=parts)
        self.latest = members
        if parts:
            for name, appended in self._lists:
                append(appended, members[name])
        elif self.appended:
            self.appended.clear()
        for name, totals in self.totals.items():
            value = bytes(members.get(name, NULL))
            if value.isdigit() and len(value) <= _DIGITS and int(value) > totals:
                self.totals[name] = int(value)

    def append(self, name: str) -> None:
        """Add the latest value of a member without a rule as a part."""
        append(self.appended.setdefault(name, bytearray(b"[")), self.latest[name])

    def replace(self, members: Members, appended: Appended | None) -> None:
        """Start again from ``members``; only FIRST members of earlier objects stay.

        ``appended`` is the new value of ``self.appended``: any other list in ``members`` came from merged
        events, in part. None: all members are complete.
        """
        self._leave(members)
        self._gone = {
            name: value for name, value in self._gone.items() if self._rules.get(name) is MergeRule.FIRST
        }
        self.totals.clear()
        self.appended = {} if appended is None else appended
        self.latest = {
            name: value
            for name, value in members.items()
            if appended is None or name in appended or not self._in_parts(name, value)
        }

    def members(self) -> ValueParts:
        """Return the members of the latest object with all that was appended, each value in pieces."""
        return {name: self._value(name, bytes(value)) for name, value in self.latest.items()}

    def all_members(self) -> ValueParts:
        """Return these members, and those that only earlier objects had."""
        return self.members() | {name: self._value(name, value) for name, value in self._gone.items()}

    def _in_parts(self, name: str, value: msgspec.Raw) -> bool:
        rule = self._rules.get(name)
        return rule is MergeRule.APPEND or (rule is None and bytes(value)[:1] == b"[")

    def _value(self, name: str, value: bytes) -> list[bytes | bytearray]:
        appended, totals = self.appended.get(name), self.totals.get(name, -1)
        if appended is not None:
            return [appended, b'"' if appended[0] == _STRING else b"]"]
        return [value if totals < 0 else b"%d" % totals]

    def _reshape(self, names: tuple[str, ...], members: Members, *, parts: bool) -> None:
        """Prepare for an object with other members than the one before."""
        self._leave(members)
        self.names = names
        self._lists = []
        self.unknown = []
        for name, value in members.items():
            rule = self._rules.get(name)
            if rule is MergeRule.APPEND and parts and value != NULL:
                self._lists.append((name, self.appended.setdefault(name, bytearray(bytes(value)[:1]))))
            elif rule is MergeRule.MOST:
                self.totals.setdefault(name, -1)
            elif rule is None and bytes(value)[:1] == b"[":
                self.unknown.append(name)

    def _leave(self, members: Members) -> None:
        """Note the members that the latest object has and ``members`` do not have."""
        for name in self._gone.keys() & members.keys():
            del self._gone[name]
        for name in self.latest.keys() - members.keys():
            self._gone[name] = bytes(self.latest[name])


def append(appended: bytearray, value: msgspec.Raw | bytes) -> None:
    """Append the entries of a list, or the characters of a string, to ``appended``.

    Raises UpstreamMalformed if the kinds differ. In place: this is most of the work of a long join.
    """
    start = len(appended)
    appended += value
    if appended[start] != appended[0]:
        del appended[start:]
        if bytes(value) == _NULL:
            return
        raise UpstreamMalformed("The worker sent a member of another type than before.")
    appended.pop()
    if appended[0] == _STRING:
        appended.pop(start)
    elif len(appended) == start + 1 or (appended[-1] <= _SPACE and not appended[start + 1 :].strip()):
        del appended[start:]
    elif start > 1:
        appended[start] = _COMMA
    else:
        appended.pop(start)


def unrepeat(value: bytes, appended: bytes | bytearray) -> bytearray:
    """Return all of a member whose ``value`` is the part not yet held and then everything, without its
    closing bracket.
    """
    comma = b"," if value[:1] == b"[" else b""
    size, had = len(value) - 2, len(appended) - 1
    gaps = len(comma) * (2 if had else 1)
    new = (size - had - gaps) // 2
    if new > 0:
        part, everything = value[1 : 1 + new], value[1 + new + len(comma) : -1]
        if everything == appended[1:] + (comma if had else b"") + part:
            return bytearray(value[:1] + everything)
    return bytearray(value[:-1])
