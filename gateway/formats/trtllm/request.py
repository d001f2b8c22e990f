"""A completions request: the few fields the gateway reads, what routing may know of them, and what is sent.

Owns: which fields are read (``CompletionRequest`` of the engine) and the one member that is added. Must never
enter: the rest of the body, which the engine judges in its own words.

Only what is no JSON object is refused here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from gateway.errors import InvalidRequest
from gateway.formats.contract import (
    UNKNOWN_LENGTH,
    Headers,
    Ids,
    Projection,
    UpstreamRequest,
    WorkerView,
    header,
)
from gateway.formats.headers import to_worker
from gateway.formats.json.ids import STAND_IN, cut_ids
from gateway.formats.json.splice import insert_member
from gateway.formats.routing_hints import Hints

PATH = "/v1/completions"

#: The engine's priorities are 0.0 to 1.0, larger is more urgent, and this is its default.
_PRIORITY = 0.5
#: Characters of a client's id that is sent on; a header line is no longer than this.
_NAME_LIMIT = 1024
_STAND_IN = msgspec.Raw(STAND_IN)
_NO_PROMPT = msgspec.Raw(b"null")
_TRUE_WORDS = frozenset({"1", "on", "t", "true", "y", "yes"})


class _Lora(msgspec.Struct, gc=False):
    lora_name: str | None = None


class Body(msgspec.Struct, gc=False):
    """The fields that are read, with the types that clients usually send."""

    prompt: msgspec.Raw = _NO_PROMPT
    model: str | None = None
    max_tokens: int | None = None
    n: int | None = 1
    stream: bool | None = False
    detokenize: bool | None | msgspec.UnsetType = msgspec.UNSET
    lora_request: _Lora | None = None
    truncate_prompt_tokens: Any = None
    priority: float | None = None


class Request(msgspec.Struct, frozen=True, gc=False):
    """One parsed request.

    ``prompts`` is the number of prompts, ``prompt_tokens`` that of their ids, None for texts. ``longest`` is
    as in the projection. ``completed`` is the body for the engine.
    """

    headers: Headers
    completed: bytes
    stream: bool
    name: str | None
    model: str | None
    prompt: msgspec.Raw
    prompts: int
    prompt_tokens: int | None
    longest: tuple[int, int]
    max_tokens: int | None
    samples: int
    lora: str | None
    priority: int

    def without_body(self) -> Request:
        """Return the request without its body and without what only hints are made of."""
        return msgspec.structs.replace(self, completed=b"", prompt=_NO_PROMPT)


_BODY = msgspec.json.Decoder(Body)
_IDS = msgspec.json.Decoder(list[int])
_LISTS = msgspec.json.Decoder(list[list[int]])
_TEXTS = msgspec.json.Decoder(list[str])


def parse(body: bytes, headers: Headers) -> Request:
    """Return the request in ``body``. Raises InvalidRequest if it is no JSON object."""
    cut = cut_ids(body, b'"prompt"')
    fields = None if cut is None else _typed(cut.rest)
    if cut is not None and fields is not None and fields.prompt == _STAND_IN:
        fields.prompt = msgspec.Raw(memoryview(body)[slice(*cut.span)])
        return _request(fields, body, headers, [cut.ids], 1)
    fields = _typed(body) or _untyped(body)
    return _request(fields, body, headers, *_count(fields.prompt))


def project(request: Request) -> Projection:
    """Return what routing, ids and metrics may know of ``request``."""
    name = request.name
    return Projection(
        request.stream,
        () if name is None else (name,),
        name is None or (len(name) <= _NAME_LIMIT and name.isascii() and name.isprintable()),
        None,
        request.model,
        request.prompt_tokens,
        request.max_tokens,
        request.samples,
        partial(_hints, request),
        longest=request.longest,
    )


def upstream(request: Request, worker: WorkerView, ids: Ids) -> UpstreamRequest:
    """Return the request for the engine, which makes up ids of its own; the header is for logs."""
    lines = to_worker(request.headers, worker.authorization)
    headers = [line for line in lines if line[0] != b"x-request-id"]
    headers.append((b"x-request-id", ids.dispatch[0].encode()))
    return UpstreamRequest(b"POST", worker.prefix + PATH.encode(), headers, request.completed)


def _request(
    fields: Body, body: bytes, headers: Headers, lengths: Sequence[int] | None, prompts: int
) -> Request:
    """Return the request made of the fields; ``lengths`` are those of its prompts, None for texts."""
    name = header(headers, b"x-request-id")
    priority = _PRIORITY if fields.priority is None else min(1.0, max(0.0, fields.priority))
    longest = UNKNOWN_LENGTH
    if lengths and fields.truncate_prompt_tokens is None:
        longest = max(lengths), max(lengths) + max(1, fields.max_tokens or 1)
    return Request(
        headers=headers,
        completed=_with_ids_out(body) if fields.detokenize is msgspec.UNSET else body,
        stream=bool(fields.stream),
        name=None if name is None else name.decode("latin-1"),
        model=fields.model or None,
        prompt=fields.prompt,
        prompts=prompts,
        prompt_tokens=None if lengths is None else sum(lengths),
        longest=longest,
        max_tokens=fields.max_tokens,
        samples=prompts * max(1, fields.n or 1),
        lora=None if fields.lora_request is None else fields.lora_request.lora_name,
        priority=round((priority - _PRIORITY) * 200),
    )


def _with_ids_out(body: bytes) -> bytes:
    """Ask for token ids instead of text, as this endpoint is for them; a client may ask for text itself."""
    return insert_member(body, "detokenize", b"false") if json.detect_encoding(body) == "utf-8" else body


def _hints(request: Request) -> Hints:
    ids = None if request.prompt_tokens is None else partial(_first_ids, request.prompt)
    return Hints(priority=request.priority, lora=request.lora, token_ids=ids)


def _first_ids(prompt: msgspec.Raw) -> Sequence[int]:
    """Return the ids of the first prompt; () where the engine would refuse them."""
    try:
        return _IDS.decode(prompt)
    except msgspec.MsgspecError:
        pass
    try:
        return next(iter(_LISTS.decode(prompt)), ())
    except msgspec.MsgspecError:
        return ()


def _count(prompt: msgspec.Raw) -> tuple[Sequence[int] | None, int]:
    """Return how many ids each prompt has, None unless they are lists of ids, and the number of prompts."""
    try:
        return [len(_IDS.decode(prompt))], 1
    except msgspec.MsgspecError:
        pass
    try:
        lengths = list(map(len, _LISTS.decode(prompt)))
        return lengths, len(lengths)
    except msgspec.MsgspecError:
        pass
    try:
        return None, len(_TEXTS.decode(prompt))
    except msgspec.MsgspecError:
        return None, 1


def _typed(body: bytes) -> Body | None:
    """Return the fields, None unless they have their usual types and the body is plain JSON. Raises
    InvalidRequest.
    """
    try:
        if not body.isascii():
            body.decode()  # msgspec does not decode the strings it skips
        return _BODY.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    except RecursionError as error:
        raise InvalidRequest("The body is nested too deeply", cause=error) from error


def _untyped(body: bytes) -> Body:
    """Return the fields the slow way: JSON as Python reads it, and types that the engine converts or
    refuses.
    """
    try:
        found = json.loads(body)
        prompt = json.dumps(found.get("prompt") if isinstance(found, dict) else None)
    except UnicodeDecodeError as error:
        raise InvalidRequest("The body is not valid UTF-8 text", cause=error) from error
    except ValueError as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}", cause=error) from error
    except RecursionError as error:
        raise InvalidRequest("The body is nested too deeply", cause=error) from error
    if not isinstance(found, dict):
        raise InvalidRequest("The body must be a JSON object", param="body")
    lora = found.get("lora_request")
    return Body(
        prompt=msgspec.Raw(prompt.encode()),
        model=_text(found.get("model")),
        max_tokens=_integer(found.get("max_tokens")),
        truncate_prompt_tokens=found.get("truncate_prompt_tokens"),
        n=_integer(found.get("n")),
        stream=_flag(found.get("stream")),
        detokenize=_flag(found["detokenize"]) if "detokenize" in found else msgspec.UNSET,
        lora_request=_Lora(_text(lora.get("lora_name"))) if isinstance(lora, dict) else None,
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _integer(value: Any) -> int | None:
    """Return an integer as pydantic reads it; None for what it would refuse."""
    try:
        return int(value) if float(value).is_integer() else None
    except (TypeError, ValueError, OverflowError):
        return None


def _flag(value: Any) -> bool:
    """Return a boolean as pydantic reads it; False for what it would refuse."""
    return value.lower() in _TRUE_WORDS if isinstance(value, str) else value in (True, 1)
