"""The format of inference routes that are passed on as they are: chat completions, embeddings and others.

Owns: gathering the parts under the contract of ``gateway.formats.contract``. Must never enter: the parts
themselves, which paths there are (the catalog's).

Requests and replies stay opaque. Of a request it is told which model it is for and under which id, of a reply
whether it is whole and how many tokens it says it has. It is no engine's dialect, so no worker is asked
whether it speaks it: what its workers must offer is the capability of other formats, and these know how such
a worker is told to stop a request.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from gateway.errors import GatewayError, InvalidRequest
from gateway.formats.base import AnyFormat, BaseFormat
from gateway.formats.contract import (
    ErrorReply,
    Headers,
    Ids,
    Projection,
    Reader,
    ReplyHead,
    UpstreamRequest,
    WorkerView,
)
from gateway.formats.optional import AbortTarget
from gateway.formats.options import Kind, flag, mebibytes, read
from gateway.formats.relayed import errors, reader, schema, upstream
from gateway.formats.relayed.request import Request, parse, parse_in_steps, project
from gateway.formats.sse import DEFAULT_EVENT_LIMIT
from gateway.formats.worker_contract import ProbeReply, ProbeRequest, WorkerInfo

NAME = "relayed"

_OPTIONS: Mapping[str, Kind] = {"passthrough_engine_errors": flag, "event_limit": mebibytes}
#: Settings of the gateway that are options of this format: field name to option.
_SETTINGS: Mapping[str, str] = MappingProxyType(
    {"passthrough_engine_errors": "passthrough_engine_errors", "event_limit_mb": "event_limit"}
)
_HEALTH = ProbeRequest("GET", "/health")


@dataclass(frozen=True)
class RelayedFormat(BaseFormat[Request]):
    """One route. ``capability`` is what a worker must offer, of several joined by ``|`` any.

    ``passthrough_engine_errors``: an engine's words about its own failures keep the paths of its files.
    ``event_limit``: largest event of a stream, in bytes.
    ``hosts`` are the formats of its workers that can stop its requests.
    """

    path: str
    capability: str
    passthrough_engine_errors: bool = False
    event_limit: int = DEFAULT_EVENT_LIMIT
    hosts: tuple[AnyFormat, ...] = ()

    name = NAME
    probes = (_HEALTH,)
    health = _HEALTH
    settings = _SETTINGS

    def parse(self, body: bytes, headers: Headers) -> Request:
        return parse(body, headers)

    def parse_in_steps(self, body: bytes, headers: Headers) -> Generator[None, None, Request]:
        return parse_in_steps(body, headers)

    def project(self, request: Request) -> Projection:
        return project(request)

    def upstream(self, request: Request, worker: WorkerView, ids: Ids) -> UpstreamRequest:
        return upstream.upstream(self.path, request, worker, ids)

    def without_body(self, request: Request) -> Request:
        return replace(request, body=b"")

    def abort(self, worker: WorkerView, request: Request, ids: Ids) -> Sequence[UpstreamRequest]:
        """None where its engine cannot tell it from others by an id: closing its connection ends it."""
        for host in self.hosts:
            if worker.info is not None and worker.info.capability == host.capability:
                return host.abort_relayed(worker, self.path, request, ids)
        return ()

    def reader(self, request: Request, worker: WorkerView, ids: Ids, head: ReplyHead) -> Reader:
        return reader.reader(
            ids, head, passthrough=self.passthrough_engine_errors, event_limit=self.event_limit
        )

    def configured(self, options: Mapping[str, str]) -> RelayedFormat:
        """``passthrough_engine_errors``: ``true`` or ``false``; ``event_limit``: a whole number of MiB."""
        return replace(self, **read(options, _OPTIONS))

    def render(self, error: GatewayError) -> ErrorReply:
        return errors.render(error)

    def identify(self, replies: Mapping[str, ProbeReply]) -> WorkerInfo | None:
        """None: see the module."""
        return None

    def aborted_ids(self, body: bytes) -> AbortTarget:
        raise InvalidRequest("these routes have no abort call; close the connection")

    def openapi(self) -> Mapping[str, Any]:
        return schema.operation(self.path)
