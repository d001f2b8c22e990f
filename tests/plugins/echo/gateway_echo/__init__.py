"""A sample format: servers that send words back."""

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
from gateway.formats.headers import media_type, of_own_call, to_worker
from gateway.formats.optional import AbortTarget
from gateway.formats.passthrough import PassthroughReader
from gateway.formats.routes import ControlCall, Recipients, Routes
from gateway.formats.worker_contract import ProbeReply, ProbeRequest, WorkerInfo

from .reader import EchoReader

ABOUT = ProbeRequest("GET", "/about-echo")


@dataclass(frozen=True)
class EchoRequest:
    """A request: its bytes, and what the gateway needs to know of them."""

    body: bytes
    headers: Headers
    text: str
    stream: bool
    id: str | None


class EchoFormat(BaseFormat[EchoRequest]):
    """The dialect. It has no state; one instance serves all requests."""

    name = "echo"
    capability = "echo"
    probes = (ABOUT,)
    health = ABOUT
    routes = Routes(
        path="/echo",
        aborts=("/hush",),
        control=(ControlCall("/volume"), ControlCall("/about-echo", ("GET",), Recipients.ANY)),
    )

    def identify(self, replies: Mapping[str, ProbeReply]) -> WorkerInfo | None:
        reply = replies.get(ABOUT.target)
        if reply is None or reply.status != 200 or reply.body != b"echo":
            return None
        return WorkerInfo(engine="echo", capability=self.capability, usable=True, models=("parrot",))

    def parse(self, body: bytes, headers: Headers) -> EchoRequest:
        members = _object(body)
        text, id = members.get("text"), header(headers, b"x-echo-id")
        if not isinstance(text, str):
            raise InvalidRequest("text must be a string", param="text")
        return EchoRequest(
            body, headers, text, members.get("stream") is True, None if id is None else id.decode("latin-1")
        )

    def project(self, request: EchoRequest) -> Projection:
        ids = () if request.id is None else (request.id,)
        usable = all(id.isascii() and id.isalnum() for id in ids)
        return Projection(request.stream, ids, usable, prompt_tokens=len(request.text.split()))

    def upstream(self, request: EchoRequest, worker: WorkerView, ids: Ids) -> UpstreamRequest:
        headers = to_worker(request.headers, worker.authorization)
        headers = [line for line in headers if line[0] != b"x-echo-id"]
        headers.append((b"x-echo-id", ids.dispatch[0].encode()))
        return UpstreamRequest(b"POST", worker.prefix + b"/echo", headers, request.body)

    def abort(self, worker: WorkerView, request: EchoRequest, ids: Ids) -> Sequence[UpstreamRequest]:
        headers = of_own_call(request.headers, worker.authorization)
        body = json.dumps({"id": ids.dispatch[0]}).encode()
        return (UpstreamRequest(b"POST", worker.prefix + b"/hush", headers, body),)

    def reader(self, request: EchoRequest, worker: WorkerView, ids: Ids, head: ReplyHead) -> Reader:
        if head.status != 200:
            return PassthroughReader(head.status)
        return EchoReader(ids, streaming=media_type(head.headers) == b"application/x-ndjson")

    def render(self, error: GatewayError) -> ErrorReply:
        return error_reply(error, json.dumps({"problem": error.message}).encode())

    def aborted_ids(self, body: bytes) -> AbortTarget:
        id = _object(body).get("id")
        if not isinstance(id, str):
            raise InvalidRequest("id must be a string", param="id")
        return AbortTarget(ids=(id,))


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("the body is not JSON", cause=error) from error
    if not isinstance(value, dict):
        raise InvalidRequest("the body must be a JSON object")
    return value


FORMAT = EchoFormat()
