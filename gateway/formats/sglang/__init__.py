"""The SGLang format: ``POST|PUT /generate`` of SGLang 0.5.22.

Owns: the class that implements the contract of a format by calls of the modules below. Must never enter: the
reading of requests and replies, which these modules do.

* A request: ``request`` (structs), ``body_fields`` (decoding), ``prompt_ids`` (counting), ``projection``
  (validation, and what routing may know), ``large_body`` (the same in steps), ``vocabulary``, ``hints``.
* A reply: ``reader`` (the choice of a reader, and the one for streams), ``unary``, ``large_event`` (one event
  in steps), ``reply`` (structs), ``tally`` (facts), ``ending``, ``ids``, ``errors``, ``error_paths``,
  ``stream_mode``, ``mode_conversion`` and ``not_finite``, ``raw_members``; the package ``join``.
* A worker: ``upstream`` (requests and aborts), ``routes``, ``probes``, ``load``.
* ``options`` are the settings of this format, ``schema`` its documentation.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping

from gateway.formats.base import BaseFormat
from gateway.formats.contract import Headers, Ids, Reader, ReplyHead, WorkerView
from gateway.formats.sglang import errors, large_body, load, projection, reader, schema, upstream, vocabulary
from gateway.formats.sglang.card import DEFAULTS as CARD_DEFAULTS
from gateway.formats.sglang.options import DEFAULTS, Options
from gateway.formats.sglang.probes import CAPABILITY, HEALTH, PROBES, identify
from gateway.formats.sglang.request import LargeBodyFields, SglangRequest
from gateway.formats.sglang.routes import ROUTES, SETTINGS, SWITCH


class SglangFormat(BaseFormat[SglangRequest]):
    """The SGLang dialect, with its options."""

    name = "sglang"
    capability = CAPABILITY
    probes = PROBES
    health = HEALTH
    loads = load.REQUESTS
    routes = ROUTES
    settings = SETTINGS
    enabled_by = SWITCH
    card_defaults = CARD_DEFAULTS

    def __init__(self, options: Options = DEFAULTS) -> None:
        self._options = options

    def parse(self, body: bytes, headers: Headers) -> SglangRequest:
        request = projection.parse(body, headers)
        if self._options.vocab_size is not None:
            vocabulary.check(body, self._options.vocab_size)
        return request

    def parse_in_steps(self, body: bytes, headers: Headers) -> Generator[None, None, SglangRequest]:
        return large_body.parse(body, headers, self._options.vocab_size)

    def check_vocabulary(self, request: SglangRequest, size: int) -> Generator[None, None, None] | None:
        if self._options.vocab_size is not None:
            return None  # its ids were compared with that when it was parsed
        if isinstance(request.fields, LargeBodyFields):
            return vocabulary.check_in_steps(request.body, request.fields.id_spans, size)
        vocabulary.check(request.body, size)
        return None

    # Assigned without a wrapper: they need no object, and the last two run for every request.
    abort = staticmethod(upstream.abort)
    abort_relayed = staticmethod(upstream.abort_relayed)
    aborted_ids = staticmethod(upstream.aborted_ids)
    render = staticmethod(errors.render)
    identify = staticmethod(identify)
    read_health = staticmethod(load.read_health)
    read_load = staticmethod(load.read_load)
    load_alternative = staticmethod(load.load_alternative)
    openapi = staticmethod(schema.operation)
    project = staticmethod(projection.project)
    upstream = staticmethod(upstream.upstream)

    def without_body(self, request: SglangRequest) -> SglangRequest:
        return request.without_body()

    def reader(self, request: SglangRequest, worker: WorkerView, ids: Ids, head: ReplyHead) -> Reader:
        return reader.relay(request, worker, ids, head, self._options)

    def join(self, request: SglangRequest, worker: WorkerView, ids: Ids, head: ReplyHead) -> Reader:
        return reader.join(request, worker, ids, head, self._options)

    def configured(self, options: Mapping[str, str]) -> SglangFormat:
        return SglangFormat(self._options.updated(options))


FORMAT = SglangFormat()
