"""The member ``routing_data`` that a router behind a worker's URL adds to an event about its own choice.

Owns: finding it, reading it, removing it from an event (as NVIDIA Dynamo adds it). Must never enter: a
dialect, its use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.errors import UpstreamMalformed
from gateway.formats.contract import ReplyFacts
from gateway.formats.json.splice import member_spans, remove_member

#: The name of the member.
NAME = "routing_data"
#: An event without these bytes does not have the member.
MARK = b'"routing_data"'

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
