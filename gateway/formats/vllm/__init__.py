"""The vLLM format: ``POST /inference/v1/generate`` of vLLM 0.33.0, token ids in and out.

Owns: the class that implements the contract of a format by calls of the modules below. Must never enter: the
reading of requests and replies, which these modules do.

* A request: ``request`` (structs), ``lenient`` (JSON and types as the engine reads them), ``projection``
  (parsing, and what routing may know), ``large_body`` (the same in steps), ``multimodal``.
* A reply: ``reader`` (the choice of a reader, and the one for streams), ``unary``, ``large_event`` (one event
  in steps), ``reply`` (structs), ``progress`` (facts of a stream), ``ending``, ``ids``, ``errors``; the
  package ``join``.
* A worker: ``upstream`` (requests and aborts), ``routes``, ``probes``, ``load``.
* ``schema`` is the documentation of this format.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace

from gateway.formats.base import BaseFormat
from gateway.formats.contract import Headers, Ids, Reader, ReplyHead, WorkerView
from gateway.formats.json.steps import STEPWISE_SIZE
from gateway.formats.options import Kind, count, flag, mebibytes, read
from gateway.formats.sse import DEFAULT_EVENT_LIMIT
from gateway.formats.vllm import errors, large_body, load, projection, reader, schema, upstream
from gateway.formats.vllm.card import DEFAULTS as CARD_DEFAULTS
from gateway.formats.vllm.join import reader as join
from gateway.formats.vllm.probes import CAPABILITY, DETAILS, HEALTH, PROBES, identify
from gateway.formats.vllm.request import Request
from gateway.formats.vllm.routes import ROUTES, SETTINGS, SWITCH

_OPTIONS: Mapping[str, Kind] = {
    "passthrough_engine_errors": flag,
    "vocab_size": count,
    "event_limit": mebibytes,
}


@dataclass(frozen=True)
class VllmFormat(BaseFormat[Request]):
    """The vLLM dialect, with its options.

    ``passthrough_engine_errors``: an engine's messages about its own failures keep their file paths.
    ``vocab_size``: the number of tokens of the model; with None ids are not compared with it.
    ``event_limit``: the largest event of a stream, in bytes.
    """

    passthrough_engine_errors: bool = False
    vocab_size: int | None = None
    event_limit: int = DEFAULT_EVENT_LIMIT

    name = "vllm"
    capability = CAPABILITY
    probes = PROBES
    details = DETAILS
    health = HEALTH
    loads = load.REQUESTS
    routes = ROUTES
    settings = SETTINGS
    enabled_by = SWITCH
    card_defaults = CARD_DEFAULTS

    def parse(self, body: bytes, headers: Headers) -> Request:
        request = projection.parse(body, headers)
        if self.vocab_size is not None:
            projection.check_vocabulary(request, self.vocab_size)
        return request

    def parse_in_steps(self, body: bytes, headers: Headers) -> Generator[None, None, Request]:
        return large_body.parse(body, headers, self.vocab_size)

    def check_vocabulary(self, request: Request, size: int) -> Generator[None, None, None] | None:
        """Placeholders of images may be outside of the vocabulary of the model's text part."""
        if self.vocab_size is not None or not projection.is_null(request.features):
            return None  # compared with the option when it was parsed, or not to be compared
        if len(memoryview(request.token_ids)) > STEPWISE_SIZE:
            return large_body.check_vocabulary(request, size)
        projection.check_vocabulary(request, size)
        return None

    # Assigned without a wrapper: they need no object, and the last two run for every request.
    abort = staticmethod(upstream.abort)
    abort_relayed = staticmethod(upstream.abort_relayed)
    aborted_ids = staticmethod(upstream.aborted_ids)
    render = staticmethod(errors.render)
    identify = staticmethod(identify)
    read_load = staticmethod(load.read_load)
    openapi = staticmethod(schema.openapi)
    project = staticmethod(projection.project)
    upstream = staticmethod(upstream.upstream)

    def without_body(self, request: Request) -> Request:
        return request.without_body()

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
        """Return this format with these options. Raises ValueError that names the invalid option.

        ``passthrough_engine_errors`` is ``true`` or ``false``; ``vocab_size`` and ``event_limit``, the latter
        in MiB, are integers above 0.
        """
        return replace(self, **read(options, _OPTIONS))


FORMAT = VllmFormat()
