"""The vLLM format: ``POST /inference/v1/generate``, token ids in and out.

Owns: the parts of the dialect, gathered under the contract of ``gateway.formats.contract``. Must never enter:
the parts themselves.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateway.errors import GatewayError
from gateway.formats.base import BaseFormat
from gateway.formats.contract import (
    ErrorReply,
    Headers,
    Ids,
    Reader,
    ReplyHead,
    UpstreamRequest,
    WorkerView,
)
from gateway.formats.optional import AbortTarget, RelayedRequest, WorkerLoad
from gateway.formats.options import Kind, count, flag, mebibytes, read
from gateway.formats.sse import DEFAULT_EVENT_LIMIT
from gateway.formats.vllm import errors, large_body, load, projection, reader, schema, upstream
from gateway.formats.vllm.join import reader as join
from gateway.formats.vllm.probes import CAPABILITY, HEALTH, PROBES, identify
from gateway.formats.vllm.request import Request
from gateway.formats.vllm.routes import ROUTES, SETTINGS
from gateway.formats.worker_contract import ProbeReply, ProbeRequest, WorkerInfo

_OPTIONS: Mapping[str, Kind] = {
    "passthrough_engine_errors": flag,
    "vocab_size": count,
    "event_limit": mebibytes,
}


@dataclass(frozen=True)
class VllmFormat(BaseFormat[Request]):
    """Stateless; see the parts for what each call promises.

    ``passthrough_engine_errors``: an engine's words about its own failures keep the paths of its files.
    ``vocab_size``: number of tokens of the model, None: not known, and ids are not held against it.
    ``event_limit``: largest event of a stream, in bytes.
    """

    passthrough_engine_errors: bool = False
    vocab_size: int | None = None
    event_limit: int = DEFAULT_EVENT_LIMIT

    name = "vllm"
    capability = CAPABILITY
    probes = PROBES
    health = HEALTH
    loads = load.QUESTIONS
    routes = ROUTES
    settings = SETTINGS

    def parse(self, body: bytes, headers: Headers) -> Request:
        request = projection.parse(body, headers)
        if self.vocab_size is not None:
            projection.check_vocabulary(request, self.vocab_size)
        return request

    def parse_in_steps(self, body: bytes, headers: Headers) -> Generator[None, None, Request]:
        return large_body.parse(body, headers, self.vocab_size)

    # Assigned without a wrapper: both run for every request, and neither needs this object.
    project = staticmethod(projection.project)
    upstream = staticmethod(upstream.upstream)

    def without_body(self, request: Request) -> Request:
        return request.without_body()

    def abort(self, worker: WorkerView, request: Request, ids: Ids) -> Sequence[UpstreamRequest]:
        return upstream.abort(worker, request, ids)

    def abort_relayed(
        self, worker: WorkerView, path: str, request: RelayedRequest, ids: Ids
    ) -> Sequence[UpstreamRequest]:
        return upstream.abort_relayed(worker, path, request, ids)

    def reader(self, request: Request, worker: WorkerView, ids: Ids, head: ReplyHead) -> Reader:
        return reader.reader(
            request, ids, head, passthrough=self.passthrough_engine_errors, event_limit=self.event_limit
        )

    def join(self, request: Request, worker: WorkerView, ids: Ids, head: ReplyHead) -> Reader:
        return join.join(
            request,
            worker,
            ids,
            head,
            passthrough=self.passthrough_engine_errors,
            event_limit=self.event_limit,
        )

    def configured(self, options: Mapping[str, str]) -> VllmFormat:
        """``passthrough_engine_errors``: ``true`` or ``false``; ``vocab_size`` and, in MiB, ``event_limit``:
        whole numbers above 0."""
        return replace(self, **read(options, _OPTIONS))

    def render(self, error: GatewayError) -> ErrorReply:
        return errors.render(error)

    def identify(self, replies: Mapping[str, ProbeReply]) -> WorkerInfo | None:
        return identify(replies)

    def read_load(self, question: ProbeRequest, reply: ProbeReply) -> WorkerLoad | None:
        return load.read_load(question, reply)

    def aborted_ids(self, body: bytes) -> AbortTarget:
        return upstream.aborted_ids(body)

    def openapi(self) -> Mapping[str, Any]:
        return schema.openapi()


FORMAT = VllmFormat()
