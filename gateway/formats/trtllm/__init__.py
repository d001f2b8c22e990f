"""The TensorRT-LLM format: ``POST /v1/completions`` of trtllm-serve, token ids in and out.

Owns: the class that implements the contract of a format by calls of the modules below. Must never enter: the
reading of requests and replies, which these modules do.

* A request: ``request``. The engine has no id of a client's request and no abort call: it stops generating
  when the connection closes.
* A reply: ``reader`` (streams and unary replies), ``join``, ``errors``.
* A worker: ``routes``, ``probes``, ``kv_events``.
* ``schema`` is the documentation of this format.

Names are those of the public source (docs/trtllm.md says which); nothing was recorded from a server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateway.errors import GatewayError
from gateway.formats.base import BaseFormat
from gateway.formats.contract import (
    ErrorReply,
    Ids,
    Reader,
    ReplyHead,
    UpstreamRequest,
    WorkerView,
)
from gateway.formats.optional import WorkerLoad
from gateway.formats.options import Kind, flag, mebibytes, read
from gateway.formats.sse import DEFAULT_EVENT_LIMIT
from gateway.formats.trtllm import errors, join, reader, request, schema
from gateway.formats.trtllm.probes import (
    CAPABILITY,
    CARD_DEFAULTS,
    DETAILS,
    HEALTH,
    LOADS,
    PROBES,
    PROMETHEUS,
    identify,
    read_load,
)
from gateway.formats.trtllm.request import Request
from gateway.formats.trtllm.routes import ROUTES, SETTINGS
from gateway.formats.worker_contract import ProbeReply, ProbeRequest, WorkerInfo

_OPTIONS: Mapping[str, Kind] = {"passthrough_engine_errors": flag, "event_limit": mebibytes}


@dataclass(frozen=True)
class TrtllmFormat(BaseFormat[Request]):
    """The TensorRT-LLM dialect, with its options.

    ``passthrough_engine_errors``: an engine's messages about its own failures keep their file paths.
    ``event_limit``: the largest event of a stream, in bytes.
    """

    passthrough_engine_errors: bool = False
    event_limit: int = DEFAULT_EVENT_LIMIT

    name = "trtllm"
    capability = CAPABILITY
    probes = PROBES
    details = DETAILS
    health = HEALTH
    loads = LOADS
    metrics = PROMETHEUS.target
    routes = ROUTES
    settings = SETTINGS
    card_defaults = CARD_DEFAULTS

    # Assigned without a wrapper: none of them needs this object.
    parse = staticmethod(request.parse)
    project = staticmethod(request.project)
    upstream = staticmethod(request.upstream)

    def without_body(self, request: Request) -> Request:
        return request.without_body()

    def abort(self, worker: WorkerView, request: Request, ids: Ids) -> Sequence[UpstreamRequest]:
        return ()

    def reader(self, request: Request, worker: WorkerView, ids: Ids, head: ReplyHead) -> Reader:
        return reader.reader(head, passthrough=self.passthrough_engine_errors, event_limit=self.event_limit)

    def join(self, request: Request, worker: WorkerView, ids: Ids, head: ReplyHead) -> Reader:
        return join.join(
            request, head, passthrough=self.passthrough_engine_errors, event_limit=self.event_limit
        )

    def configured(self, options: Mapping[str, str]) -> TrtllmFormat:
        """Return this format with these options. Raises ValueError that names the invalid option."""
        return replace(self, **read(options, _OPTIONS))

    def render(self, error: GatewayError) -> ErrorReply:
        return errors.render(error)

    def identify(self, replies: Mapping[str, ProbeReply]) -> WorkerInfo | None:
        return identify(replies)

    def read_load(self, probe_request: ProbeRequest, reply: ProbeReply) -> WorkerLoad | None:
        return read_load(probe_request, reply)

    def openapi(self) -> Mapping[str, Any]:
        return schema.openapi()


FORMAT = TrtllmFormat()
