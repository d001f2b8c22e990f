"""The join reader: turns a stream of events into the unary reply.

Owns: which sample an event is about, the order of the samples, the error reply in place of an error event.
Must never enter: what becomes of a member (merged_object.py), what a fact is (tally.py).
"""

from __future__ import annotations

import msgspec

from gateway.errors import GatewayError, UpstreamIncomplete, UpstreamMalformed
from gateway.formats import routing_data
from gateway.formats.id_mapping import IdMapping
from gateway.formats.sglang.ending import ending_of
from gateway.formats.sglang.error_paths import ErrorPathCutter
from gateway.formats.sglang.errors import without_stream
from gateway.formats.sglang.join.event_decoder import EventDecoder
from gateway.formats.sglang.join.merged_sample import MergedSample, index_of
from gateway.formats.sglang.not_finite import from_finite, has_not_finite, to_finite
from gateway.formats.sglang.raw_members import NULL, parse_raw_event
from gateway.formats.sglang.stream_mode import StreamMode
from gateway.formats.sglang.tally import Tally
from gateway.formats.sse import EventScanner


class JoinReader:
    """A reader that returns one document at the end of a stream. ``listed``: the document is a list of
    samples.

    If several samples failed, the first error is the reply, as the engine gives up at the first.
    """

    streaming = False
    identity = False

    def __init__(  # noqa: PLR0913 - the parts it puts to work
        self,
        tally: Tally,
        mode: StreamMode,
        id_mapping: IdMapping | None,
        path_cutter: ErrorPathCutter,
        scanner: EventScanner,
        *,
        listed: bool,
    ) -> None:
        self._tally = tally
        self.facts = tally.facts
        self._scanner = scanner
        self._mode = mode
        self._id_mapping = id_mapping
        self._path_cutter = path_cutter
        self._listed = listed
        self._refusal = b""
        self._decoder: EventDecoder | None = None
        self._samples: dict[int, MergedSample] = {}
        self._closed = False
        #: True if an event had NaN or Infinity.
        self._replaced = False

    def feed(self, data: bytes) -> bytes:
        if self._closed:
            return b""
        for _, document in self._scanner.feed(data):
            if document == b"[DONE]":
                self._closed = True
                break
            if document is not None:
                self._take(document)
        return b""

    def finish(self) -> bytes:
        if not self.facts.terminal:
            raise UpstreamIncomplete("The worker's stream ended before the generation did.")
        reply = self._refusal or self._joined()
        if self._replaced:
            reply = from_finite(reply)
        self.facts.ending = ending_of(self.facts, error_event=self._tally.error_event)
        self._samples.clear()
        return reply if self._id_mapping is None else self._id_mapping.map(reply)

    def fail(self, error: GatewayError) -> bytes:
        return b""

    def _take(self, document: bytes) -> None:
        noted = routing_data.MARK in document
        if not noted and self._plain(document):
            return
        ended = self.facts.terminal
        try:
            if noted:
                document = routing_data.extract(document, self.facts)
            if document:
                self._read(document)
        except UpstreamMalformed:
            # After the end of all samples nothing can be malformed any more.
            if not ended:
                raise

    def _plain(self, document: bytes) -> bool:
        """Add an ordinary event with unchanged prompt counts. Return False if it is none."""
        decoder = self._decoder
        if decoder is None:
            return False
        try:
            decoded = decoder.decode(document)
            if not document.isascii():
                document.decode()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return False
        index = decoder.index(decoded)
        sample = self._samples.get(index)
        if sample is None or sample.decoder is not decoder or sample.finished:
            return False
        if not self._tally.running(index, decoder.total(decoded), decoder.prompt(decoded)):
            return False
        sample.add_plain(decoded)
        return True

    def _read(self, document: bytes) -> None:
        if has_not_finite(document):
            self._replaced = True
            document = to_finite(document)
        event = parse_raw_event(document)
        failure = self._tally.event(document)
        if failure is not None and not self._refusal:
            self._refusal = self._path_cutter.body(without_stream(document, failure), failure)
        if event is None:
            return
        index = index_of(event)
        sample = self._samples.get(index)
        if sample is None:
            sample = self._samples[index] = MergedSample(self._mode)
        if sample.finished:
            return
        if event.meta.get("finish_reason", NULL) == NULL:
            sample.add(event)
            self._decoder = sample.next_decoder()
        else:
            sample.end(event)

    def _joined(self) -> bytes:
        parts: list[bytes | bytearray] = []
        for _, sample in sorted(self._samples.items()):
            parts += (b",", *sample.unary())
        if not parts:
            raise UpstreamMalformed("The worker's stream has no event of any sample.")
        if self._listed or len(self._samples) > 1:
            return b"".join((b"[", *parts[1:], b"]"))
        return b"".join(parts[1:])
