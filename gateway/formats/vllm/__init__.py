"""The vLLM format: ``POST /inference/v1/generate``, token ids in and out.

Owns: gathering the parts of the dialect under the contract of ``gateway.formats.base``. Must never enter: the
parts themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

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
from gateway.formats.vllm import errors, join, projection, reader, schema, upstream
from gateway.formats.vllm.probes import CAPABILITY, HEALTH, PROBES, identify
from gateway.formats.vllm.projection import Request

PASSTHROUGH = "passthrough_engine_errors"

_FLAGS = {"true": True, "false": False}


@dataclass(frozen=True)
class VllmFormat:
    """Stateless; see the parts for what each call promises.

    ``passthrough``: an engine's words about its own failures keep the paths of its files.
    """

    passthrough: bool = False

    name: ClassVar[str] = "vllm"
    capability: ClassVar[str] = CAPABILITY
    probes: ClassVar[Sequence[ProbeRequest]] = PROBES
    health: ClassVar[ProbeRequest] = HEALTH

    def parse(self, body: bytes, headers: Headers) -> Request:
        return projection.parse(body, headers)

    def project(self, request: Request) -> Projection:
        return projection.project(request)

    def upstream(self, request: Request, worker: WorkerView, ids: Ids) -> UpstreamRequest:
        return upstream.upstream(request, worker, ids)

    def abort(self, worker: WorkerView, request: Request, ids: Ids) -> Sequence[UpstreamRequest]:
        return upstream.abort(worker, request, ids)

    def reader(self, request: Request, worker: WorkerView, ids: Ids, head: ReplyHead) -> Reader:
        return reader.reader(request, ids, head, passthrough=self.passthrough)

    def join(self, request: Request, worker: WorkerView, ids: Ids, head: ReplyHead) -> Reader:
        return join.join(request, worker, ids, head, passthrough=self.passthrough)

    def configured(self, options: Mapping[str, str]) -> Format[Request]:
        """``passthrough_engine_errors``: ``true`` or ``false``."""
        for name, value in options.items():
            if name != PASSTHROUGH:
                raise ValueError(f"{name}: this format has no such setting")
            if value not in _FLAGS:
                raise ValueError(f"{name}: must be true or false, not {value!r}")
        return VllmFormat(passthrough=_FLAGS[options[PASSTHROUGH]]) if options else self

    def render(self, error: GatewayError) -> ErrorReply:
        return errors.render(error)

    def identify(self, replies: Mapping[str, ProbeReply]) -> WorkerInfo | None:
        return identify(replies)

    def aborted_ids(self, body: bytes) -> AbortTarget:
        return upstream.aborted_ids(body)

    def openapi(self) -> Mapping[str, Any]:
        return schema.openapi()


FORMAT: Format[Request] = VllmFormat()
