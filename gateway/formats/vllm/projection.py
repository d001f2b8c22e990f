"""Parsing a generate body: the few fields the gateway needs, read the way the engine reads them.

Owns: which fields are read and how an id is named (rules of vLLM 0.33.0). Must never enter: the rest of the
body, which the engine judges in its own words; building token ids.

Only what is no JSON object is refused here: the engine answers everything else itself. The one input known to
crash it is an id outside its vocabulary, on a server without a tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TypeVar

import msgspec

from gateway.errors import InvalidRequest
from gateway.formats.contract import UNKNOWN_LENGTH, Headers, Projection, header
from gateway.formats.json.ids import STAND_IN, cut_ids
from gateway.formats.json.loose import plain_json
from gateway.formats.json.windows import Span
from gateway.formats.routing_hints import Hints, ImageSpan
from gateway.formats.vllm.ids import fits_header
from gateway.formats.vllm.lenient import check_utf8, count_items, flag, integer
from gateway.formats.vllm.multimodal import image_spans
from gateway.formats.vllm.request import NULL, Body, Request, Sampling, UntypedBody, UntypedSampling

T = TypeVar("T")

#: This engine serves the lowest number first, so signs are inverted; within 32 bits, like other formats.
MOST_URGENT = 2**31 - 1
LEAST_URGENT = -(2**31)
#: Every rank is below this.
RANKS = 2**32


_STAND_IN = msgspec.Raw(STAND_IN)

_BODY = msgspec.json.Decoder(Body)
_ANY_BODY = msgspec.json.Decoder(UntypedBody)
_ANY_SAMPLING = msgspec.json.Decoder(UntypedSampling)
_TEXT = msgspec.json.Decoder(str)
_SCALAR = msgspec.json.Decoder(bool | int | float | str | None)
_SCALARS = msgspec.json.Decoder(list[bool | int | float | str | None])
_IDS = msgspec.json.Decoder(list[int])


def parse(body: bytes, headers: Headers) -> Request:
    """Return the request in ``body``. Raises InvalidRequest if it is no JSON object."""
    cut = cut_ids(body, b'"token_ids"')
    if cut is not None and (fields := _typed_fields(cut.rest)) is not None and fields.token_ids == _STAND_IN:
        start, end = cut.span
        fields.token_ids = msgspec.Raw(memoryview(body)[start:end])
        return request_of(fields, body, headers, cut.ids)
    fields = _typed_fields(body) or _converted_fields(body)
    return request_of(fields, body, headers, count_items(fields.token_ids))


def request_of(
    fields: Body,
    body: bytes,
    headers: Headers,
    prompt_tokens: int | None,
    id_cuts: Sequence[Span] | None = None,
) -> Request:
    """Return the request made of ``body`` and the fields that were read from it."""
    header_id = header(headers, b"x-request-id")
    return Request(
        body=body,
        headers=headers,
        stream=bool(fields.stream),
        name=fields.request_id if header_id is None else header_id.decode("latin-1"),
        model=fields.model or None,
        prompt_tokens=prompt_tokens,
        max_tokens=fields.sampling_params.max_tokens,
        samples=max(1, fields.sampling_params.n),
        token_ids=fields.token_ids,
        priority=fields.priority,
        cache_salt=fields.cache_salt or None,
        features=fields.features,
        id_cuts=id_cuts,
    )


def check_vocabulary(request: Request, size: int) -> None:
    """Refuse a prompt with an id of ``size`` or above. Raises InvalidRequest."""
    check_ids(token_ids(request), size)


def check_ids(ids: Sequence[int], size: int) -> None:
    """Raise InvalidRequest if one of the ids is ``size`` or above."""
    if ids and max(ids) >= size:
        raise InvalidRequest(
            f"token_ids must hold ids of the model's vocabulary, 0 to {size - 1}",
            param="token_ids",
            rule="token_id_outside_vocabulary",
        )


def project(request: Request) -> Projection:
    """Return what routing, ids and metrics may know of ``request``."""
    name, prompt = request.name, request.prompt_tokens
    longest = UNKNOWN_LENGTH
    # With features an engine of another release may count an image by itself.
    if prompt is not None and (request.features is NULL or is_null(request.features)):
        longest = prompt, prompt + (request.max_tokens or 1)
    return Projection(  # in the order of its fields: to name them doubles its price
        request.stream,
        () if name is None else (name,),
        name is None or fits_header(name),
        "request_id",
        request.model,
        prompt,
        request.max_tokens,
        request.samples,
        partial(hints, request),
        request.id_cuts,
        None,
        longest,
    )


def hints(request: Request) -> Hints:
    """Return what a policy may want to know.

    Whether the named model is an adapter is known from a worker's own list.
    """
    return Hints(
        priority=min(MOST_URGENT, max(LEAST_URGENT, -request.priority)),
        lora=request.model,
        cache_salt=request.cache_salt,
        dp_rank=_rank(header(request.headers, b"x-data-parallel-rank")),
        token_ids=None if request.prompt_tokens is None else partial(token_ids, request),
        images=None if is_null(request.features) else partial(images, request),
    )


def token_ids(request: Request) -> Sequence[int]:
    """Return the prompt's ids as the engine converts them; () where it would refuse them."""
    return ids_of(request.token_ids)


def ids_of(raw: msgspec.Raw) -> Sequence[int]:
    """Return the ids in a list, or in a part of one, as the engine converts them; () where it would refuse
    them.
    """
    try:
        return _IDS.decode(raw)
    except msgspec.MsgspecError:
        pass
    listed = _decoded(_SCALARS, raw) or []
    ids = [found for item in listed if (found := integer(item)) is not None]
    return ids if len(ids) == len(listed) else ()


def images(request: Request, block_size: int = 16, *, tower_lora: bool = False) -> Sequence[ImageSpan] | None:
    """Return the image spans of the prompt; see gateway.formats.routing_hints.Images."""
    return image_spans(token_ids(request), request.features, block_size, tower_lora=tower_lora)


def is_null(raw: msgspec.Raw) -> bool:
    """Return True for null, without a copy, as other values may be long."""
    return bytes(memoryview(raw)[:4]) == b"null"


def _rank(value: bytes | None) -> int | None:
    text = (value or b"").strip()
    return int(text) if text.isdigit() and len(text) <= 10 and int(text) < RANKS else None


def _typed_fields(body: bytes) -> Body | None:
    """Return the fields, None unless they have their usual types and the body is plain JSON. Raises
    InvalidRequest.
    """
    try:
        check_utf8(body)
        return _BODY.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    except RecursionError as error:
        raise too_deep(error) from error


def _converted_fields(body: bytes) -> Body:
    """Return the fields the slow way: some have types that the engine converts, or the JSON is not
    standard.
    """
    try:
        loose = _ANY_BODY.decode(plain_json(body))
    except UnicodeDecodeError as error:
        raise not_text(error) from error
    except msgspec.ValidationError as error:
        raise not_an_object(error) from error
    except msgspec.DecodeError as error:
        raise not_json(error) from error
    except RecursionError as error:
        raise too_deep(error) from error
    return convert_fields(loose)


def convert_fields(loose: UntypedBody) -> Body:
    """Return the fields as the engine converts them."""
    sampling = _decoded(_ANY_SAMPLING, loose.sampling_params) or UntypedSampling()
    samples = integer(_decoded(_SCALAR, sampling.n))
    return Body(
        token_ids=loose.token_ids,
        sampling_params=Sampling(
            n=1 if samples is None else samples,
            max_tokens=integer(_decoded(_SCALAR, sampling.max_tokens)),
        ),
        request_id=_decoded(_TEXT, loose.request_id),
        model=_decoded(_TEXT, loose.model),
        stream=flag(_decoded(_SCALAR, loose.stream)),
        priority=integer(_decoded(_SCALAR, loose.priority)) or 0,
        cache_salt=_decoded(_TEXT, loose.cache_salt),
        features=loose.features,
    )


def _decoded(decoder: msgspec.json.Decoder[T], raw: msgspec.Raw) -> T | None:
    """Return the value of a field, None if its type is one that the engine will refuse."""
    try:
        return decoder.decode(raw)
    except msgspec.MsgspecError:
        return None


def not_text(cause: UnicodeDecodeError) -> InvalidRequest:
    return InvalidRequest("The body is not valid UTF-8 text", cause=cause)


def not_an_object(cause: BaseException | None = None) -> InvalidRequest:
    return InvalidRequest("The body must be a JSON object", param="body", cause=cause)


def not_json(error: msgspec.DecodeError) -> InvalidRequest:
    return InvalidRequest(f"The body is not valid JSON: {error}", cause=error)


def too_deep(error: RecursionError) -> InvalidRequest:
    return InvalidRequest("The body is nested too deeply", cause=error)
