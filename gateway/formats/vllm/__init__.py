"""The vLLM format: ``POST /inference/v1/generate``, token ids in and out.

Owns: gathering the parts of the dialect under the contract of ``gateway.formats.base``. Must never enter: the
parts themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.errors import GatewayError
from gateway.formats.base import (
    AbortTarget,
    ErrorReply,
    Format,
    Headers,
    Ids,
    ProbeReply,
    ProbeRequest,
    Projection,
    Reader,
    ReplyHead,
    UpstreamRequest,
    WorkerInfo,
    WorkerView,
)
from gateway.formats.vllm import errors, projection, reader, schema, upstream
from gateway.formats.vllm.probes import CAPABILITY, HEALTH, PROBES, identify
from gateway.formats.vllm.projection import Request


class VllmFormat:
    """Stateless; see the parts for what each call promises."""

    name = "vllm"
    capability = CAPABILITY
    probes: Sequence[ProbeRequest] = PROBES
    health = HEALTH

    def parse(self, body: bytes, headers: Headers) -> Request:
        return projection.parse(body, headers)

    def project(self, request: Request) -> Projection:
        return projection.project(request)

    def upstream(self, request: Request, worker: WorkerView, ids: Ids) -> UpstreamRequest:
        return upstream.upstream(request, worker, ids)

    def abort(self, worker: WorkerView, request: Request, ids: Ids) -> Sequence[UpstreamRequest]:
        return upstream.abort(worker, request, ids)

    def reader(self, request: Request, worker: WorkerView, ids: Ids, head: ReplyHead) -> Reader:
        return reader.reader(request, ids, head)

    def join(self, request: Request, worker: WorkerView, ids: Ids, head: ReplyHead) -> Reader:
        return self.reader(request, worker, ids, head)

    def configured(self, options: Mapping[str, str]) -> Format[Request]:
        if options:
            raise ValueError(f"{next(iter(options))}: this format has no such setting")
        return self

    def render(self, error: GatewayError) -> ErrorReply:
        return errors.render(error)

    def identify(self, replies: Mapping[str, ProbeReply]) -> WorkerInfo | None:
        return identify(replies)

    def aborted_ids(self, body: bytes) -> AbortTarget:
        return upstream.aborted_ids(body)

    def openapi(self) -> Mapping[str, Any]:
        return schema.openapi()


FORMAT: Format[Request] = VllmFormat()
