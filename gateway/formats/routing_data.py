"""The member ``routing_data`` that a router behind a worker's URL adds to an event about its own choice.

Owns: finding it, reading it, removing it from an event (as NVIDIA Dynamo adds it). Must never enter: a
dialect, its use.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec

from gateway.errors import UpstreamMalformed
from gateway.formats.contract import ReplyFacts
from gateway.formats.json.blanked import MemberBlanker
from gateway.formats.json.splice import member_spans, remove_member

#: The name of the member.
NAME = "routing_data"
#: An event without these bytes does not have the member.
MARK = b'"routing_data"'

_parts = msgspec.json.Decoder(list[msgspec.Raw]).decode
_note = msgspec.json.Decoder(dict[str, Any] | None).decode


def note(value: bytes, facts: ReplyFacts) -> None:
    """Record the member's value as a fact; null is ignored. Raises UpstreamMalformed unless it is an
    object.
    """
    try:
        found: Mapping[str, Any] | None = _note(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UpstreamMalformed("The worker sent routing data that is no object.", cause=error) from error
    if found is not None:
        facts.routing_data = found


def extract(document: bytes, facts: ReplyFacts) -> bytes:
    """Record the member of the object ``document``; return the object without it, b"" if nothing else was in
    it.

    Of several the last one counts, as in any reading of JSON. Raises UpstreamMalformed.
    """
    spans = member_spans(document, NAME)
    if not spans:
        return document
    start, end = spans[-1]
    note(document[start:end], facts)
    rest = remove_member(document, NAME)
    return rest if rest.strip(b"{} \t\r\n") else b""


def extract_from_reply(reply: bytes, facts: ReplyFacts) -> bytes:
    """Do the same to a unary reply, one object or a list of objects; return the reply without the members.

    A member that is no object is not a router's, and stays.
    """
    if MARK not in reply:
        return reply
    with suppress(UpstreamMalformed, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        if reply.lstrip().startswith(b"{"):
            return extract(reply, facts) or b"{}"
        parts = [bytes(part) for part in _parts(reply)]
        if all(part.startswith(b"{") for part in parts):
            return b"[%b]" % b",".join(extract(part, facts) or b"{}" for part in parts)
    return reply


class LargeReply:
    """Blanks the member in a unary reply that is sent on in pieces, and records it.

    Nothing is searched but the name, which is quick: an engine's reply has no other member of that name, and
    a quote inside a string has a backslash before it.
    """

    __slots__ = ("_blanker", "_facts", "_held", "_surplus")

    def __init__(self, facts: ReplyFacts) -> None:
        self._facts = facts
        self._blanker: MemberBlanker | None = None
        self._held = b""
        self._surplus = 0

    def feed(self, data: bytes, *, final: bool = False) -> bytes:
        """Return the bytes for the client, as many as were read in all once ``final`` is given."""
        if self._blanker is not None:
            return self._without_surplus(self._blanker.feed(data, final=final))
        text = self._held + data if self._held else data
        start = _begin_of_member(text)
        if start is None:
            end = len(text) if final else _begin_of_beginning(text)
            self._held = text[end:]
            return text[:end]
        self._blanker = MemberBlanker(NAME, self._note)
        if text[start : start + 1] == b",":
            # It reads the member as the second one of an object, whose beginning is not sent.
            self._surplus = len(_FIRST_MEMBER)
            text = text[:start] + _FIRST_MEMBER + text[start:]
        return text[:start] + self._without_surplus(self._blanker.feed(text[start:], final=final))

    def _without_surplus(self, out: bytes) -> bytes:
        cut = min(self._surplus, len(out))
        self._surplus -= cut
        return out[cut:]

    def _note(self, value: bytes) -> None:
        with suppress(UpstreamMalformed):  # it is no router's
            note(value, self._facts)


_FIRST_MEMBER = b'{"":0'
#: The most bytes of a comma, space and the name of a member.
_BEGINNING = 80


def _begin_of_member(text: bytes) -> int | None:
    """Return where the comma or bracket before the name is, None if the name does not occur as one."""
    at = text.find(MARK)
    while at >= 0:
        before = len(text[max(0, at - _BEGINNING) : at].rstrip()) + max(0, at - _BEGINNING) - 1
        if before >= 0 and text[before] in b",{":
            return before
        at = text.find(MARK, at + 1)
    return None


def _begin_of_beginning(text: bytes) -> int:
    """Return where the beginning of the member may be that the next piece completes; or else the end."""
    near = max(0, len(text) - _BEGINNING)
    at = max(text.rfind(b",", near), text.rfind(b"{", near))
    return at if at >= 0 and MARK.startswith(text[at + 1 :].lstrip()) else len(text)


def extract_from_event(event: bytes, document: bytes, facts: ReplyFacts) -> tuple[bytes, bytes]:
    """Do the same to ``event`` and ``document``, its data; return both, or b"" twice if nothing else was
    there.
    """
    rest = extract(document, facts)
    if rest == document:
        return event, document
    if not rest:
        return b"", b""
    if document in event:
        return event.replace(document, rest, 1), rest
    # Data in several lines has its line ends between values, where JSON does not need them.
    return b"data: %b\n\n" % rest.replace(b"\n", b""), rest
