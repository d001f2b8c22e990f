"""JSON objects as mappings of names to raw JSON values.

Owns: splitting an event into its members without decoding their values, and writing an object. Must never
enter: what a member means.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from gateway.errors import UpstreamMalformed

Members = dict[str, msgspec.Raw]

# Raw values compare equal to raw values only.
NULL = msgspec.Raw(b"null")

_members = msgspec.json.Decoder(Members).decode
_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_quoted = msgspec.json.encode


class RawEvent(NamedTuple):
    """The members of an event's object and of its ``meta_info``; the values are views of the event's
    bytes.
    """

    top: Members
    meta: Members


def parse_raw_event(data: bytes) -> RawEvent | None:
    """Return the members of an event, None if it is about no sample. Raises UpstreamMalformed if it is no
    JSON object.
    """
    try:
        top = _members(data)
        # Raw values are not decoded, so that their bytes are UTF-8 is checked here.
        if not data.isascii():
            data.decode()
        meta = top.get("meta_info")
        return None if meta is None or meta == NULL else RawEvent(top, _members(meta))
    except msgspec.ValidationError as error:
        if data.lstrip()[:1] == b"{":
            # Its ``meta_info`` is no object.
            return None
        raise UpstreamMalformed("The worker sent a reply of an unknown shape.", cause=error) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UpstreamMalformed("The worker sent a reply that is not valid JSON.", cause=error) from error


def object_parts(members: Mapping[str, Iterable[bytes | bytearray]]) -> list[bytes | bytearray]:
    """Return an object with these members, in pieces, as a value may be too large to be copied."""
    parts: list[bytes | bytearray] = [b"{"]
    for name, value in members.items():
        parts.append((b"," if len(parts) > 1 else b"") + _quoted(name) + b":")
        parts.extend(value)
    parts.append(b"}")
    return parts


def count(items: bytes | bytearray | msgspec.Raw) -> int:
    """Return the number of entries of a list. Raises UpstreamMalformed for anything else."""
    try:
        return len(_items(items))
    except (msgspec.DecodeError, RecursionError) as error:
        raise UpstreamMalformed("The worker sent a value that is not a list.", cause=error) from error
