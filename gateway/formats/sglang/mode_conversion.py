"""Conversion of a stream into the mode the client expects, whatever mode the worker uses.

Owns: rewriting events from one mode into the other, sample by sample. Must never enter: facts, ids, which
mode is wanted.

The result is what an engine in the other mode would have sent (SGLang 0.5.22), its echo of an abort included.
Events that are the same in both modes are relayed unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol
from zlib import crc32

from gateway.errors import UpstreamMalformed
from gateway.formats.sglang.join.merged_object import Appended
from gateway.formats.sglang.join.merged_sample import MergedSample, index_of, is_echo
from gateway.formats.sglang.join.rules import META, TOP, MergeRule
from gateway.formats.sglang.not_finite import from_finite, has_not_finite, to_finite
from gateway.formats.sglang.raw_members import NULL, Members, RawEvent, count, object_parts, parse_raw_event
from gateway.formats.sglang.stream_mode import CUMULATIVE, INCREMENTAL, StreamMode, count_ids

Sent = dict[str, tuple[int, int]]
ValueParts = dict[str, list[bytes | bytearray]]


class Converter(Protocol):
    """A converter of the events of one stream."""

    def convert(self, event: bytes, document: bytes) -> bytes:
        """Return ``event``, which contains ``document``, in the wanted mode. Raises UpstreamMalformed."""
        ...


def converter(wanted: str, declared: str | None) -> Converter | None:
    """Return the converter into the mode ``wanted``, None if the worker declares that it uses that mode."""
    if declared == wanted:
        return None
    if wanted == CUMULATIVE:
        return FiniteConverter(ToCumulative(StreamMode(declared)))
    return FiniteConverter(ToIncremental(StreamMode(declared))) if wanted == INCREMENTAL else None


class FiniteConverter:
    """A converter that shows ``inner`` numbers in place of NaN and Infinity."""

    def __init__(self, inner: Converter) -> None:
        self._inner = inner
        #: True once there was one, as a cumulative event repeats it.
        self._replaced = False

    def convert(self, event: bytes, document: bytes) -> bytes:
        if has_not_finite(document):
            self._replaced = True
            document = to_finite(document)
        converted = self._inner.convert(event, document)
        return from_finite(converted) if self._replaced and converted is not event else converted


class ToCumulative:
    """A converter that adds to every event what earlier events of its sample had."""

    def __init__(self, mode: StreamMode) -> None:
        self._mode = mode
        self._samples: dict[int, MergedSample] = {}

    def convert(self, event: bytes, document: bytes) -> bytes:
        parsed = None if self._mode.incremental is False else parse_raw_event(document)
        if parsed is None:
            return event
        sample = self._samples.get(index_of(parsed))
        if sample is None:
            sample = self._samples[index_of(parsed)] = MergedSample(self._mode)
        elif sample.finished:
            return event
        first = sample.empty
        if parsed.meta.get("finish_reason", NULL) == NULL:
            sample.add(parsed)
        else:
            sample.end(parsed)
        if not self._mode.incremental or (first and not sample.finished):
            return event
        return _event(sample.cumulative())


class ToIncremental:
    """A converter that removes from every event what the client already has.

    Only lengths and checksums are kept of what was sent.
    """

    def __init__(self, mode: StreamMode) -> None:
        self._mode = mode
        self._samples: dict[int, MergedSample] = {}
        self._cutters: dict[int, _Cutter] = {}

    def convert(self, event: bytes, document: bytes) -> bytes:
        parsed = None if self._mode.incremental else parse_raw_event(document)
        if parsed is None:
            return event
        index = index_of(parsed)
        if self._mode.incremental is None and self._is_mode_open(index, parsed):
            return event
        if self._mode.incremental:
            return event
        cutter = self._cutters.get(index)
        if cutter is None:
            cutter = self._cutters[index] = _Cutter(self._samples.pop(index, None))
        return _event(cutter.cut(parsed))

    def _is_mode_open(self, index: int, parsed: RawEvent) -> bool:
        """Add an event while the mode is unknown. Return True if it is still unknown with this event."""
        sample = self._samples.get(index)
        if sample is None:
            sample = self._samples[index] = MergedSample(self._mode)
        sample.detect_mode(parsed)
        if self._mode.incremental is None:
            sample.add(parsed)
        return self._mode.incremental is None


class _Cutter:
    """The conversion of one sample of a cumulative stream."""

    def __init__(self, sample: MergedSample | None) -> None:
        top, meta = ({}, {}) if sample is None else sample.appended()
        self._top = _sent(top)
        self._meta = _sent(meta)
        self._complete: set[str] = set()

    def cut(self, parsed: RawEvent) -> bytes:
        echo = parsed.meta.get("finish_reason", NULL) != NULL and is_echo(parsed)
        top: ValueParts = {name: [value] for name, value in parsed.top.items()}
        meta: ValueParts = {name: [value] for name, value in parsed.meta.items()}
        for name, value in _parts(parsed.top, TOP):
            if name in TOP:
                top[name] = self._cut(name, value, self._top, echo=echo)
        for name, value in _parts(parsed.meta, META):
            if name in META or self._is_per_token(name, value, parsed):
                meta[name] = self._cut(name, value, self._meta, echo=echo)
        return b"".join(object_parts({**top, "meta_info": object_parts(meta)}))

    def _is_per_token(self, name: str, value: bytes, parsed: RawEvent) -> bool:
        if name not in self._complete and count(value) != count_ids(parsed):
            self._complete.add(name)
        return name not in self._complete

    def _cut(self, name: str, value: bytes, sent: Sent, *, echo: bool) -> list[bytes | bytearray]:
        """Return the new part of ``value``; an echo also repeats everything, or the last id."""
        length, checksum = sent.get(name, (1, crc32(value[:1])))
        if crc32(memoryview(value)[:length]) != checksum:
            raise UpstreamMalformed("The worker changed what it had sent before.")
        end = len(value) - 1
        sent[name] = (end, crc32(memoryview(value)[:end]))
        new = value[length:end]
        if value[:1] == b"[":
            new = new[length > 1 :]
        if not echo:
            return [value[:1], new, value[-1:]]
        again = value[1:end].rpartition(b",")[2] if name == "output_ids" else value[1:end]
        comma = b"," if new and again and value[:1] == b"[" else b""
        return [value[:1], new, comma, again, value[-1:]]


def _parts(members: Members, rules: Mapping[str, MergeRule]) -> Iterator[tuple[str, bytes]]:
    """Yield the members that may come in parts: those with that rule, and lists without a rule."""
    for name, raw in members.items():
        rule = rules.get(name)
        if rule is MergeRule.APPEND or rule is None:
            value = bytes(raw)
            if value[:1] == b"[" or (rule is MergeRule.APPEND and value[:1] == b'"'):
                yield name, value


def _sent(appended: Appended) -> Sent:
    return {name: (len(value), crc32(value)) for name, value in appended.items()}


def _event(document: bytes) -> bytes:
    return b"data: %b\n\n" % document
