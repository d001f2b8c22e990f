"""The choice of the reader for a reply, and the relay reader for streams.

Owns: relaying events as they come, knowing whether the engine has finished. Must never enter: what a document
means (tally.py), what is changed in an event (error_paths.py, mode_conversion.py, ids.py).
"""

from __future__ import annotations

from gateway.errors import GatewayError, UpstreamIncomplete, UpstreamMalformed
from gateway.formats import routing_data
from gateway.formats.contract import Ids, Reader, ReplyHead, WorkerView
from gateway.formats.headers import encoded, media_type
from gateway.formats.id_mapping import IdMapping
from gateway.formats.passthrough import PassthroughReader
from gateway.formats.sglang.ending import ending_of
from gateway.formats.sglang.error_paths import ErrorPathCutter
from gateway.formats.sglang.errors import in_band
from gateway.formats.sglang.ids import id_mapping_for
from gateway.formats.sglang.join.reader import JoinReader
from gateway.formats.sglang.large_event import relay_large_event
from gateway.formats.sglang.mode_conversion import Converter, converter
from gateway.formats.sglang.options import Options
from gateway.formats.sglang.reply import ABSENT
from gateway.formats.sglang.request import SglangRequest
from gateway.formats.sglang.stream_mode import StreamMode
from gateway.formats.sglang.tally import Tally, document_of
from gateway.formats.sglang.unary import UnaryReader
from gateway.formats.sse import LARGE_EVENT_SIZE, Event, EventScanner

_UNREADABLE = "The worker answered with something other than a stream of events."


def relay(request: SglangRequest, worker: WorkerView, ids: Ids, head: ReplyHead, options: Options) -> Reader:
    """Return the reader that relays a reply with this head."""
    content_type, is_encoded = media_type(head.headers), encoded(head.headers)
    if not _is_stream(request, head, content_type, is_encoded):
        return _unary(request, ids, head, options, content_type, is_encoded)
    return StreamReader(
        Tally(request.samples, request.samples_per_prompt),
        id_mapping_for(request, ids),
        ErrorPathCutter(cut=options.cut_paths),
        EventScanner(options.event_limit, LARGE_EVENT_SIZE),
        converter(options.stream_mode, _declared(worker)),
    )


def join(request: SglangRequest, worker: WorkerView, ids: Ids, head: ReplyHead, options: Options) -> Reader:
    """Return the reader that joins a stream into one document and relays other replies."""
    content_type, is_encoded = media_type(head.headers), encoded(head.headers)
    if not _is_stream(request, head, content_type, is_encoded):
        return _unary(request, ids, head, options, content_type, is_encoded)
    return JoinReader(
        Tally(request.samples, request.samples_per_prompt),
        StreamMode(_declared(worker)),
        id_mapping_for(request, ids),
        ErrorPathCutter(cut=options.cut_paths),
        EventScanner(options.event_limit),
        listed=request.batch is not None or request.samples_per_prompt > 1,
    )


def _is_stream(request: SglangRequest, head: ReplyHead, content_type: bytes, is_encoded: bool) -> bool:
    if head.status != 200 or is_encoded:
        return False
    return content_type == b"text/event-stream" or (request.stream and not content_type)


def _unary(  # noqa: PLR0913 - what its one caller knows
    request: SglangRequest, ids: Ids, head: ReplyHead, options: Options, content_type: bytes, is_encoded: bool
) -> Reader:
    if head.status != 200:
        return PassthroughReader(head.status, cut=head.status >= 500 and options.cut_paths and not is_encoded)
    if is_encoded:
        return PassthroughReader(head.status, streaming=request.stream)
    if request.stream and b"json" not in content_type:
        return PassthroughReader(head.status, broken=UpstreamMalformed(_UNREADABLE))
    return UnaryReader(request.samples, request.samples_per_prompt, id_mapping_for(request, ids))


def _declared(worker: WorkerView) -> str | None:
    return None if worker.info is None else worker.info.stream_mode


class StreamReader:
    """A reader that relays events, and ``[DONE]`` only after the engine has finished every sample."""

    streaming = True
    # What follows [DONE] is dropped and an error may be added, so a content length would become wrong.
    identity = False

    def __init__(
        self,
        tally: Tally,
        id_mapping: IdMapping | None,
        path_cutter: ErrorPathCutter,
        scanner: EventScanner,
        convert: Converter | None,
    ) -> None:
        self._tally = tally
        self.facts = tally.facts
        self._scanner = scanner
        self._id_mapping = id_mapping
        self._path_cutter = path_cutter
        self._convert = convert
        self._closed = False
        self._done_relayed = False
        self._unsent = b""

    def feed(self, data: bytes) -> bytes:
        if self._closed:
            return b""
        events = self._scanner.feed(data)
        if len(events) == 1:
            return self._pass(*events[0])
        return self._pass_all(events)

    def finish(self) -> bytes:
        if not self.facts.terminal:
            raise UpstreamIncomplete("The worker's stream ended before the generation did.")
        self.facts.ending = ending_of(self.facts, error_event=self._tally.error_event)
        if self._closed:
            return b""
        pending = self._scanner.pending
        return pending if self._id_mapping is None else self._id_mapping.map(pending)

    def fail(self, error: GatewayError) -> bytes:
        return b"" if self._done_relayed else self._unsent + in_band(error)

    def _pass_all(self, events: list[Event]) -> bytes:
        if not events and self._scanner.large is not None:
            self.facts.steps = relay_large_event(
                self._scanner.take_large_event(),
                self._tally,
                self._path_cutter,
                self._convert,
                self._id_mapping,
                self.feed,
            )
        passed: list[bytes] = []
        try:
            for event, data in events:
                if self._closed:
                    break
                passed.append(self._pass(event, data))
        except UpstreamMalformed:
            # The events before the malformed one are complete: they are sent with the error.
            self._unsent = b"".join(passed)
            self.facts.unsent = len(self._unsent)
            raise
        return b"".join(passed)

    def _pass(self, event: bytes, data: bytes | None) -> bytes:
        if data is None:
            return event
        if data == b"[DONE]":
            # Without a terminal event ``finish`` will report that the stream broke off.
            self._closed = True
            self._done_relayed = self.facts.terminal
            return event if self._done_relayed else b""
        ended = self.facts.terminal
        try:
            event = self._read(event, data)
        except UpstreamMalformed:
            if not ended:
                raise
            # After the end of the generation nothing can be malformed any more.
            return b""
        return event if self._id_mapping is None else self._id_mapping.map(event)

    def _read(self, event: bytes, data: bytes) -> bytes:
        """Record the facts of an event, and return the event as it is relayed."""
        document = document_of(data)
        if document.routing_data is not ABSENT:
            event, data = routing_data.extract_from_event(event, data, self.facts)
            if not event:
                return b""
        failure = self._tally.add(document)
        if failure is not None:
            event = self._path_cutter.cut_event(event, data, failure)
        return event if self._convert is None else self._convert.convert(event, data)
