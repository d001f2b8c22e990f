"""What is looked at of a request.

Owns: the model, whether a stream is asked for, the id, at once or bit by bit. Must never enter: refusing a
body, which is the engine's to judge; touching a byte of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from gateway.formats.contract import Headers, Projection, header
from gateway.formats.headers import media_type
from gateway.formats.json.steps import Members, Steps, members, raw, starts_as_object
from gateway.formats.json.windows import Span

#: Names the model where the body does not.
MODEL_HEADER = b"x-model"
#: Members of a body that may hold the client's id: one that counts before the header, one that counts after
#: it, to the engines that know them.
RID, REQUEST_ID = "rid", "request_id"

_HEADER_SAFE = re.compile(r"[!-~](?:[ -~]{0,1022}[!-~])?")
#: The beginning of a list of prompts; of ids there is one alone. So many blanks, and it is taken for one.
_PROMPTS = re.compile(rb'\[[ \t\r\n]{0,64}+["\[ \t\r\n]')
_NOTHING = (b"", b"null", b"1", b"false")
ABSENT = msgspec.Raw()


class _Peek(msgspec.Struct):
    model: msgspec.Raw = ABSENT
    stream: msgspec.Raw = ABSENT
    rid: msgspec.Raw = ABSENT
    request_id: msgspec.Raw = ABSENT
    n: msgspec.Raw = ABSENT
    use_beam_search: msgspec.Raw = ABSENT
    prompt: msgspec.Raw = ABSENT


_WANTED = frozenset(_Peek.__struct_fields__)
_peek = msgspec.json.Decoder(_Peek).decode
_string = msgspec.json.Decoder(str).decode


@dataclass(frozen=True, slots=True)
class Request:
    """``id`` is the client's, None where it named none; ``member`` is where in the body it stands, None: in
    no member of it. ``single``, ``fan`` and ``searched`` are those of RelayedRequest.

    ``spans`` are those of ``RID`` in a big body, ``cuts`` what to leave out of it to have it without its id.
    """

    body: bytes
    headers: Headers
    model: str | None
    stream: bool
    id: str | None
    member: str | None = None
    single: bool = True
    fan: bool = False
    searched: bool = False
    spans: Sequence[Span] | None = None
    cuts: Sequence[Span] | None = None


def parse(body: bytes, headers: Headers) -> Request:
    """Total: a body that cannot be read names nothing."""
    if _readable(body, headers):
        try:
            return _read(_peek(body), body, headers)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
    return _read(_Peek(), body, headers)


def parse_in_steps(body: bytes, headers: Headers) -> Steps[Request]:
    """The same, a few milliseconds at a time."""
    if _readable(body, headers):
        try:
            if starts_as_object(body):
                found = yield from members(body, _WANTED, repeated=RID)
                peek = _Peek(**{name: raw(body, span) for name, span in found.values.items()})
                return _read(peek, body, headers, found)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
    return _read(_Peek(), body, headers)


def project(request: Request) -> Projection:
    """All that is known of it."""
    id = request.id
    return Projection(
        stream=request.stream,
        ids=() if id is None else (id,),
        # It reaches the engine in a header, too.
        ids_usable=id is None or _HEADER_SAFE.fullmatch(id) is not None,
        id_member=request.member,
        model=request.model,
        id_cuts=request.cuts,
    )


def _readable(body: bytes, headers: Headers) -> bool:
    return media_type(headers) in (b"", b"application/json") or body[:1] == b"{"


def _read(peek: _Peek, body: bytes, headers: Headers, found: Members | None = None) -> Request:
    """``found`` is what was found in a big body. Raises DecodeError for a text that is none."""
    member, id = _named(peek, headers)
    return Request(
        body=body,
        headers=headers,
        model=_text(peek.model) or _line(headers, MODEL_HEADER),
        stream=_is(peek.stream, (b"true",)),
        id=id,
        member=member,
        single=not _several(peek.prompt),
        fan=not _is(peek.n, _NOTHING),
        searched=not _is(peek.use_beam_search, _NOTHING),
        spans=None if found is None else found.repeated,
        # To look for another member once more would take long.
        cuts=None if found is None else found.cuts if member == RID else (),
    )


def _named(peek: _Peek, headers: Headers) -> tuple[str | None, str | None]:
    """The member that holds the client's id, if one does, and the id."""
    if (id := _text(peek.rid)) is not None:
        return RID, id
    line = _line(headers, b"x-request-id")
    if line is not None and _HEADER_SAFE.fullmatch(line) is not None:
        return None, line
    id = _text(peek.request_id)
    return (None if id is None else REQUEST_ID), id


def _is(value: msgspec.Raw, words: Sequence[bytes]) -> bool:
    text = memoryview(value)
    return len(text) < 8 and bytes(text) in words


def _several(prompt: msgspec.Raw) -> bool:
    return _PROMPTS.match(memoryview(prompt)) is not None


def _text(value: msgspec.Raw) -> str | None:
    return _string(value) if bytes(memoryview(value)[:1]) == b'"' else None


def _line(headers: Headers, name: bytes) -> str | None:
    value = header(headers, name)
    try:
        return None if value is None else value.decode().strip() or None
    except UnicodeDecodeError:
        return None
