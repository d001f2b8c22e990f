"""The format of relayed routes: chat completions, embeddings and other inference routes.

Owns: one class that implements the contract of ``gateway.formats.contract``. Must never enter: parsing and
reading, which other modules of this package do; the list of paths (gateway.catalog).

Requests and replies are forwarded without inspection, except for the model and the id of a request, and
whether a reply is complete and how many tokens it reports. The format is no engine's dialect, so no worker is
probed for it: its workers are those of other formats, the hosts, which also know how to abort its requests.
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
from gateway.formats.relayed.apis import api_of_path
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
    """One relayed route.

    ``capability`` is what a worker must offer; of several, separated by ``|``, any one. ``hosts`` are the
    formats of its workers. ``passthrough_engine_errors``: file paths stay in errors of engines.
    ``event_limit`` is the size of the largest event of a stream, in bytes. ``method`` is that of its
    requests, ``resource`` the id in their path. ``creates``: a reply names what the request created.
    """

    path: str
    capability: str
    passthrough_engine_errors: bool = False
    event_limit: int = DEFAULT_EVENT_LIMIT
    hosts: tuple[AnyFormat, ...] = ()
    method: str = "POST"
    resource: str | None = None
    creates: bool = False

    name = NAME
    probes = (_HEALTH,)
    health = _HEALTH
    settings = _SETTINGS

    def parse(self, body: bytes, headers: Headers) -> Request:
        return parse(body, headers)

    def parse_in_steps(self, body: bytes, headers: Headers) -> Generator[None, None, Request]:
        return parse_in_steps(body, headers)

    def project(self, request: Request) -> Projection:
        projection = project(request)
        return projection if self.resource is None else projection._replace(resource=self.resource)

    def upstream(self, request: Request, worker: WorkerView, ids: Ids) -> UpstreamRequest:
        return upstream.upstream(self.method, self.path, request, worker, ids)

    def without_body(self, request: Request) -> Request:
        return replace(request, body=b"")

    def abort(self, worker: WorkerView, request: Request, ids: Ids) -> Sequence[UpstreamRequest]:
        """Return the host's requests; () if the engine cannot abort by this id: the connection is closed."""
        for host in self.hosts:
            if worker.info is not None and worker.info.capability == host.capability:
                return host.abort_relayed(worker, self.path, request, ids)
        return ()

    def reader(self, request: Request, worker: WorkerView, ids: Ids, head: ReplyHead) -> Reader:
        return reader.reader(
            ids,
            head,
            passthrough=self.passthrough_engine_errors,
            event_limit=self.event_limit,
            api=api_of_path(self.path),
            creates=self.creates,
        )

    def configured(self, options: Mapping[str, str]) -> RelayedFormat:
        """``passthrough_engine_errors``: ``true`` or ``false``; ``event_limit``: a whole number of MiB."""
        return replace(self, **read(options, _OPTIONS))

    def render(self, error: GatewayError) -> ErrorReply:
        return errors.render(error, api_of_path(self.path))

    def identify(self, replies: Mapping[str, ProbeReply]) -> WorkerInfo | None:
        """Return None: no worker speaks this format."""
        return None

    def aborted_ids(self, body: bytes) -> AbortTarget:
        raise InvalidRequest("these routes have no abort call; close the connection")

    def openapi(self) -> Mapping[str, Any]:
        return schema.operation(self.path)
