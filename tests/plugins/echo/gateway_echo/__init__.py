"""A sample format: servers that say words back.

Owns: a dialect unlike any engine's, so that the contract is seen to carry it. Must never enter: anything of
the gateway but ``gateway.errors`` and the ``gateway.formats`` helpers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.errors import GatewayError, InvalidRequest
from gateway.formats.base import BaseFormat
from gateway.formats.contract import (
    ErrorReply,
    Headers,
    Ids,
    Projection,
    Reader,
    ReplyHead,
    UpstreamRequest,
    WorkerView,
    header,
)
from gateway.formats.failures import error_reply
from gateway.formats.headers import media_type, to_worker
from gateway.formats.optional import AbortTarget, WorkerHealth, WorkerLoad, health_by_status
from gateway.formats.passthrough import PassthroughReader
from gateway.formats.worker_contract import ProbeReply, ProbeRequest, WorkerInfo

from .reader import JoinReader, LinesReader, WholeReader

ABOUT = ProbeRequest("GET", "/about-echo")
LOAD = ProbeRequest("GET", "/echoing")


@dataclass(frozen=True)
class Call:
    """A request of this dialect: its bytes, and what was peeked at."""

    body: bytes
    headers: Headers
    say: str
    most: int | None
    lines: bool
    tag: str | None


class EchoFormat(BaseFormat[Call]):
    """Stateless; the gateway finds it by its entry point."""

    name = "echo"
    capability = "echo"
    probes: Sequence[ProbeRequest] = (ABOUT,)
    health = ABOUT
    loads: Sequence[ProbeRequest] = (LOAD,)

    def parse(self, body: bytes, headers: Headers) -> Call:
        found = _object(body)
        say, most = found.get("say"), found.get("most")
        if not isinstance(say, str):
            raise InvalidRequest("Nothing to say", param="say")
        if most is not None and (type(most) is not int or most < 0):
            raise InvalidRequest("Most is a number of words", param="most")
        return Call(body, headers, say, most, found.get("lines") is True, _tag(found, headers))

    def project(self, request: Call) -> Projection:
        tag = request.tag
        return Projection(
            stream=request.lines,
            ids=() if tag is None else (tag,),
            ids_usable=tag is None or (tag.isascii() and tag.isalnum()),
            id_member="tag",
            prompt_tokens=len(request.say.split()),
            max_tokens=request.most,
        )

    def upstream(self, request: Call, worker: WorkerView, ids: Ids) -> UpstreamRequest:
        lines = [line for line in to_worker(request.headers, worker.authorization) if line[0] != b"x-tag"]
        lines.append((b"x-tag", ids.dispatch[0].encode()))
        return UpstreamRequest(b"POST", worker.prefix + b"/echo", lines, request.body)

    def abort(self, worker: WorkerView, request: Call, ids: Ids) -> Sequence[UpstreamRequest]:
        return ()  # hanging up is all it takes

    def reader(self, request: Call, worker: WorkerView, ids: Ids, head: ReplyHead) -> Reader:
        return LinesReader(ids) if _in_lines(head) else _whole(ids, head)

    def join(self, request: Call, worker: WorkerView, ids: Ids, head: ReplyHead) -> Reader:
        return JoinReader(ids) if _in_lines(head) else _whole(ids, head)

    def configured(self, options: Mapping[str, str]) -> EchoFormat:
        if options:
            raise ValueError(f"{next(iter(options))}: this format has no such setting")
        return self

    def render(self, error: GatewayError) -> ErrorReply:
        return error_reply(error, json.dumps({"problem": error.message}).encode())

    def identify(self, replies: Mapping[str, ProbeReply]) -> WorkerInfo | None:
        reply = replies.get(ABOUT.target)
        if reply is None or reply.status != 200 or reply.body != b"echo":
            return None
        return WorkerInfo(engine="echo", capability=self.capability, usable=True, models=("parrot",))

    def read_health(self, reply: ProbeReply) -> WorkerHealth:
        return health_by_status(reply)

    def read_load(self, question: ProbeRequest, reply: ProbeReply) -> WorkerLoad | None:
        known = reply.status == 200 and reply.body.isdigit() and len(reply.body) < 10
        return WorkerLoad(running=int(reply.body), waiting=0) if known else None

    def aborted_ids(self, body: bytes) -> AbortTarget:
        tag = _object(body).get("tag")
        if not isinstance(tag, str):
            raise InvalidRequest("The tag must be text", param="tag")
        return AbortTarget(ids=(tag,))

    def openapi(self) -> Mapping[str, Any]:
        schema = {"type": "object", "properties": {"say": {"type": "string"}}, "required": ["say"]}
        return {
            "summary": "Say words back",
            "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
            "responses": {"200": {"description": "The words."}},
        }


def _object(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("The body is not JSON", cause=error) from error
    if not isinstance(found, dict):
        raise InvalidRequest("The body must be a JSON object")
    return found


def _tag(found: dict[str, Any], headers: Headers) -> str | None:
    """The header's, else the body's, as the server has it."""
    named = header(headers, b"x-tag")
    tag = found.get("tag") if named is None else named.decode("latin-1")
    if tag is None or isinstance(tag, str):
        return tag
    raise InvalidRequest("The tag must be text", param="tag")


def _in_lines(head: ReplyHead) -> bool:
    return head.status == 200 and media_type(head.headers) == b"application/x-ndjson"


def _whole(ids: Ids, head: ReplyHead) -> Reader:
    return WholeReader(ids) if head.status == 200 else PassthroughReader(head.status)


FORMAT = EchoFormat()
