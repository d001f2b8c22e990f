"""SGLang's native ``POST|PUT /generate``.

Owns: putting the dialect's parts together as a Format. Must never enter: anything the parts own.
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
from gateway.formats.sglang import errors, projection, schema, upstream
from gateway.formats.sglang.probes import CAPABILITY, HEALTH, PROBES, identify
from gateway.formats.sglang.projection import SglangRequest
from gateway.formats.sglang.reader import reader


class SglangFormat:
    """The SGLang dialect; see gateway.formats.base.Format for the contract of each member."""

    name = "sglang"
    capability = CAPABILITY
    probes: Sequence[ProbeRequest] = PROBES
    health = HEALTH

    def parse(self, body: bytes, headers: Headers) -> SglangRequest:
        return projection.parse(body, headers)

    def project(self, request: SglangRequest) -> Projection:
        return projection.project(request)

    def upstream(self, request: SglangRequest, worker: WorkerView, ids: Ids) -> UpstreamRequest:
        return upstream.upstream(request, worker, ids)

    def abort(self, worker: WorkerView, request: SglangRequest, ids: Ids) -> Sequence[UpstreamRequest]:
        return upstream.abort(worker, request, ids)

    def reader(self, request: SglangRequest, worker: WorkerView, ids: Ids, head: ReplyHead) -> Reader:
        return reader(request, ids, head)

    def join(self, request: SglangRequest, worker: WorkerView, ids: Ids, head: ReplyHead) -> Reader:
        return self.reader(request, worker, ids, head)

    def configured(self, options: Mapping[str, str]) -> Format[SglangRequest]:
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
        return schema.operation()


FORMAT = SglangFormat()
