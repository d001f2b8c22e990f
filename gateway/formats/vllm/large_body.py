"""Parsing a large generate body in steps.

Owns: reading a large body a part at a time, its text encoding included. Must never enter: what a field means
(projection.py), which is the same for every body.
"""

from __future__ import annotations

import codecs
import json
from io import BytesIO

import msgspec

from gateway.formats.contract import Headers
from gateway.formats.json.loose import REPAIR_LIMIT
from gateway.formats.json.steps import (
    STEPWISE_SIZE,
    MemberSpans,
    Steps,
    members,
    members_of,
    raw,
    starts_as_object,
)
from gateway.formats.json.windows import Span, pieces
from gateway.formats.vllm import projection
from gateway.formats.vllm.projection import (
    check_ids,
    convert_fields,
    ids_of,
    not_an_object,
    not_json,
    not_text,
    request_of,
    too_deep,
)
from gateway.formats.vllm.request import Request, UntypedBody, UntypedSampling

_WANTED = frozenset(UntypedBody.__struct_fields__)
_SAMPLING = frozenset(UntypedSampling.__struct_fields__)
_PIECE = 256 * 1024


def parse(body: bytes, headers: Headers, vocab_size: int | None) -> Steps[Request]:
    """Do in steps of a few milliseconds what projection.parse and check_vocabulary do."""
    try:
        text, found = yield from _members(body)
    except msgspec.DecodeError as error:
        if len(body) <= REPAIR_LIMIT:
            return projection.parse(body, headers)
        raise not_json(error) from error
    except RecursionError as error:
        raise too_deep(error) from error
    spans = found.values
    fields = {name: raw(text, span) for name, span in spans.items()}
    sampling = spans.get("sampling_params")
    if (
        sampling is not None
        and sampling[1] - sampling[0] > STEPWISE_SIZE
        and text.startswith(b"{", sampling[0])
    ):
        wanted_members = yield from members_of(text, sampling, _SAMPLING)
        parts = [b'"%b":%b' % (name.encode(), text[slice(*value)]) for name, value in wanted_members.items()]
        fields["sampling_params"] = msgspec.Raw(b"{%b}" % b",".join(parts))
    tokens = None
    if "token_ids" in spans:
        tokens = yield from _ids(text, spans["token_ids"], vocab_size)
    cuts = found.cuts if text is body else None
    return request_of(convert_fields(UntypedBody(**fields)), body, headers, tokens, cuts)


def _members(body: bytes) -> Steps[tuple[bytes, MemberSpans]]:
    """Return the text, which is the body itself if that is plain UTF-8, and its members."""
    plain = yield from _is_utf8(body)
    encoding = json.detect_encoding(body)
    if plain and encoding == "utf-8":
        if not starts_as_object(body):
            raise not_an_object()
        return body, (yield from members(body, _WANTED, repeated="request_id"))
    text = yield from _transcoded(body, encoding)
    if not starts_as_object(text):
        raise not_an_object()
    return text, (yield from members(text, _WANTED))


def _is_utf8(body: bytes) -> Steps[bool]:
    decode = codecs.getincrementaldecoder("utf-8")().decode
    try:
        for start in range(0, len(body), _PIECE):
            piece = body[start : start + _PIECE]
            decode(piece, start + _PIECE >= len(body))
            yield
    except UnicodeDecodeError:
        return False
    return True


def _transcoded(body: bytes, encoding: str) -> Steps[bytes]:
    """Return a copy in UTF-8. Raises InvalidRequest if the bytes are not text."""
    decode = codecs.getincrementaldecoder(encoding)("surrogatepass").decode
    text = BytesIO()
    try:
        for start in range(0, len(body), _PIECE):
            piece = decode(body[start : start + _PIECE], start + _PIECE >= len(body))
            text.write(piece.encode("utf-8", "replace"))
            yield
    except UnicodeDecodeError as error:
        raise not_text(error) from error
    return text.getvalue()


def check_vocabulary(request: Request, size: int) -> Steps[None]:
    """Do what projection.check_vocabulary does, in steps. Raises InvalidRequest."""
    text = bytes(request.token_ids)
    yield from _ids(text, (0, len(text)), size)


def _ids(text: bytes, span: Span, vocab_size: int | None) -> Steps[int | None]:
    """Return the number of ids, None for what is no list. Raises InvalidRequest for an id outside the
    vocabulary.
    """
    if not text.startswith(b"[", span[0]):
        return None
    commas, has_ids, largest = 0, False, -1
    for piece in pieces(text, (span[0] + 1, span[1] - 1)):
        commas += piece.count(b",")
        has_ids = has_ids or bool(piece.strip())
        if vocab_size is not None:
            ids = ids_of(msgspec.Raw(b"[%b]" % piece.strip(b", \t\r\n")))
            if not ids:
                vocab_size = None  # the engine would refuse them
            largest = max(largest, *ids, -1)
        yield
    if vocab_size is not None:
        check_ids((largest,), vocab_size)
    return commas + 1 if commas or has_ids else 0
