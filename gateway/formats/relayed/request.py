"""Relayed requests: their model, their id, and whether they ask for a stream.

Owns: the model, the id, whether it asks for a stream; read at once or in steps. Must never enter: refusing a
body (the engine does), changing a byte of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from gateway.formats.contract import Headers, Projection, header
from gateway.formats.headers import media_type
from gateway.formats.json.loose import plain_json
from gateway.formats.json.steps import MemberSpans, Steps, members, raw, starts_as_object
from gateway.formats.json.windows import Span

#: The header that names the model if the body does not.
MODEL_HEADER = b"x-model"
#: Members of a body that may hold the client's id. RID has priority over the header, the header has priority
#: over REQUEST_ID, as in the engines that know these members.
RID, REQUEST_ID = "rid", "request_id"

_HEADER_SAFE = re.compile(r"[!-~](?:[ -~]{0,1022}[!-~])?")
#: The beginning of a list of prompts, as opposed to a list of token ids, which is one prompt. A list that
#: begins with more than 64 blanks is taken for a list of prompts.
_PROMPTS = re.compile(rb'\[[ \t\r\n]{0,64}+["\[ \t\r\n]')
_NOTHING = (b"", b"null", b"1", b"false")
ABSENT = msgspec.Raw()


class _BodyFields(msgspec.Struct):
    model: msgspec.Raw = ABSENT
    stream: msgspec.Raw = ABSENT
    rid: msgspec.Raw = ABSENT
    request_id: msgspec.Raw = ABSENT
    n: msgspec.Raw = ABSENT
    use_beam_search: msgspec.Raw = ABSENT
    prompt: msgspec.Raw = ABSENT
    previous_response_id: msgspec.Raw = ABSENT
    session_id: msgspec.Raw = ABSENT


_WANTED = frozenset(_BodyFields.__struct_fields__)
_decode_fields = msgspec.json.Decoder(_BodyFields).decode
_string = msgspec.json.Decoder(str).decode


@dataclass(frozen=True, slots=True)
class Request:
    """A relayed request.

    ``id`` is the client's, None if it named none; ``member`` is the member of the body that holds it, None
    if none does. ``one_prompt``, ``several_samples`` and ``beam_search`` are those of RelayedRequest.
    ``resource`` is the id of something a worker created, if the body refers to that.
    ``spans`` are the positions of ``RID`` in a large body, ``cuts`` the positions to remove for a body
    without its id.
    """

    body: bytes
    headers: Headers
    model: str | None
    stream: bool
    id: str | None
    member: str | None = None
    one_prompt: bool = True
    several_samples: bool = False
    beam_search: bool = False
    resource: str | None = None
    spans: Sequence[Span] | None = None
    cuts: Sequence[Span] | None = None


def parse(body: bytes, headers: Headers) -> Request:
    """Read a request. Raises nothing: a body that cannot be read names no model and no id."""
    if _readable(body, headers):
        # The copy is for engines that read a body with Python's json.
        for reading in (bytes, plain_json):
            with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                return _read(_decode_fields(reading(body)), body, headers)
    return _read(_BodyFields(), body, headers)


def parse_in_steps(body: bytes, headers: Headers) -> Steps[Request]:
    """Do what ``parse`` does, and yield every few milliseconds."""
    if _readable(body, headers):
        try:
            if starts_as_object(body):
                found = yield from members(body, _WANTED, repeated=RID)
                fields = _BodyFields(**{name: raw(body, span) for name, span in found.values.items()})
                return _read(fields, body, headers, found)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
    return _read(_BodyFields(), body, headers)


def project(request: Request) -> Projection:
    """Return what routing and ids may know."""
    id = request.id
    return Projection(
        stream=request.stream,
        ids=() if id is None else (id,),
        # The engine gets it in a header as well.
        ids_usable=id is None or _HEADER_SAFE.fullmatch(id) is not None,
        id_member=request.member,
        model=request.model,
        id_cuts=request.cuts,
        resource=request.resource,
    )


def _readable(body: bytes, headers: Headers) -> bool:
    return media_type(headers) in (b"", b"application/json") or body[:1] == b"{"


def _read(fields: _BodyFields, body: bytes, headers: Headers, found: MemberSpans | None = None) -> Request:
    """Return the request. ``found`` are the members of a large body. Raises DecodeError for invalid text."""
    member, id = _id_of(fields, headers)
    return Request(
        body=body,
        headers=headers,
        model=_text(fields.model) or _header_text(headers, MODEL_HEADER),
        stream=_equals_any(fields.stream, (b"true",)),
        id=id,
        member=member,
        one_prompt=not _is_list_of_prompts(fields.prompt),
        several_samples=not _equals_any(fields.n, _NOTHING),
        beam_search=not _equals_any(fields.use_beam_search, _NOTHING),
        resource=_text(fields.previous_response_id) or _text(fields.session_id),
        spans=None if found is None else found.repeated,
        # Searching a large body again for the other member would take long.
        cuts=None if found is None else found.cuts if member == RID else (),
    )


def _id_of(fields: _BodyFields, headers: Headers) -> tuple[str | None, str | None]:
    """Return the member that holds the client's id, if one does, and the id."""
    if (id := _text(fields.rid)) is not None:
        return RID, id
    line = _header_text(headers, b"x-request-id")
    if line is not None and _HEADER_SAFE.fullmatch(line) is not None:
        return None, line
    id = _text(fields.request_id)
    return (None if id is None else REQUEST_ID), id


def _equals_any(value: msgspec.Raw, words: Sequence[bytes]) -> bool:
    text = memoryview(value)
    return len(text) < 8 and bytes(text) in words


def _is_list_of_prompts(prompt: msgspec.Raw) -> bool:
    return _PROMPTS.match(memoryview(prompt)) is not None


def _text(value: msgspec.Raw) -> str | None:
    return _string(value) if bytes(memoryview(value)[:1]) == b'"' else None


def _header_text(headers: Headers, name: bytes) -> str | None:
    value = header(headers, name)
    try:
        return None if value is None else value.decode().strip() or None
    except UnicodeDecodeError:
        return None
