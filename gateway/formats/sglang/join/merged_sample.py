"""One sample of a streamed reply, merged from its events.

Owns: the merging, the echo of an abort included (observed at SGLang 0.5.22). Must never enter: framing, ids,
what an error is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from gateway.errors import UpstreamMalformed
from gateway.formats.sglang.join.event_decoder import EventDecoder, decoder_for
from gateway.formats.sglang.join.merged_object import Appended, MergedObject, append, unrepeat
from gateway.formats.sglang.join.rules import ECHOED, META, NOT_ECHOED, TOP
from gateway.formats.sglang.raw_members import NULL, Members, RawEvent, count, object_parts
from gateway.formats.sglang.stream_mode import StreamMode, count_ids, total_of

_NOTHING = b"["
_NO_INDEX = msgspec.Raw(b"0")


Take = Callable[[Any], Any]


class MergedSample:
    """One merged sample. ``finished``: its last event was added.

    ``decoder``: the decoder of the events that ``add_plain`` accepts.
    """

    __slots__ = (
        "_dropped",
        "_event",
        "_lists",
        "_meta",
        "_mode",
        "_plain",
        "_names",
        "_top",
        "finished",
        "decoder",
    )

    def __init__(self, mode: StreamMode) -> None:
        self.finished = False
        self.decoder: EventDecoder | None = None
        self._mode = mode
        self._top = MergedObject(TOP)
        self._meta = MergedObject(META)
        self._event: RawEvent | None = None
        self._dropped: set[str] = set()
        self._lists: list[tuple[Take, bytearray]] = []
        self._names: tuple[tuple[str, ...], tuple[str, ...]] | None = None
        #: The latest event, if it was added by ``add_plain``.
        self._plain: Any = None

    def detect_mode(self, event: RawEvent) -> None:
        """Detect the stream's mode from the sample's next event, if it is not known yet."""
        if self._mode.incremental is not None:
            return
        appended = self._top.appended
        if is_echo(event):
            self._mode.observe_echo(appended.get("output_ids", _NOTHING), event)
        else:
            self._mode.observe(appended.get("output_ids", b""), appended.get("text", b""), event)

    def add(self, event: RawEvent) -> None:
        """Add an event. Raises UpstreamMalformed if it does not fit those before it."""
        self._adopt_plain()
        self.detect_mode(event)
        parts = self._mode.incremental is not False
        self._top.add(event.top, parts=parts)
        self._meta.add(event.meta, parts=parts)
        self._event = event
        if parts and self._meta.unknown:
            self._guess(event)

    def next_decoder(self) -> EventDecoder | None:
        """Return the decoder of events like the latest, if the next one like it may be added by
        ``add_plain``.
        """
        if self.finished or not self._mode.incremental or self._meta.unknown:
            return None
        names = (self._top.names, self._meta.names)
        if names != self._names:
            # A decoder is worth its cost only for members that occur twice.
            self._names = names
            return None
        self.decoder = decoder = decoder_for(*names)
        if decoder is not None:
            top, meta = self.appended()
            self._lists = [(take, top[name]) for name, take in decoder.top_lists if name in top]
            self._lists += [(take, meta[name]) for name, take in decoder.meta_lists if name in meta]
        return decoder

    def add_plain(self, decoded: Any) -> None:
        """Add an event that ``decoder`` decoded. Raises UpstreamMalformed."""
        for take, appended in self._lists:
            append(appended, take(decoded))
        totals = self._meta.totals
        for name, take in self.decoder.totals if self.decoder is not None else ():
            total = take(decoded)
            if total > totals[name]:
                totals[name] = total
        self._plain = decoded

    def end(self, event: RawEvent) -> None:
        """Add the event that has the finish reason. Raises UpstreamMalformed."""
        self.finished = True
        if is_echo(event):
            self._end_in_echo(event)
        else:
            self.add(event)

    def unary(self) -> list[bytes | bytearray]:
        """Return the sample as a unary reply has it, in pieces. Raises UpstreamMalformed if tokens are
        missing.
        """
        top = self._top.all_members()
        top.pop("index", None)
        self._check()
        return object_parts({**top, "meta_info": object_parts(self._meta.all_members())})

    @property
    def empty(self) -> bool:
        return self._event is None

    def cumulative(self) -> bytes:
        """Return the latest event with all that came before it, as a cumulative stream has it."""
        return b"".join(
            object_parts({**self._top.members(), "meta_info": object_parts(self._meta.members())})
        )

    def appended(self) -> tuple[Appended, Appended]:
        """Return the appended values of the event's object and of its ``meta_info``."""
        return self._top.appended, self._meta.appended

    def _guess(self, event: RawEvent) -> None:
        """Append lists of unknown name, as long as each has one entry for each id."""
        ids = count_ids(event)
        for name in self._meta.unknown:
            if name in self._dropped:
                continue
            if count(event.meta[name]) == ids:
                self._meta.append(name)
            else:
                self._dropped.add(name)
                self._meta.appended.pop(name, None)

    def _adopt_plain(self) -> None:
        """Make the latest event an ordinary one if it was added by ``add_plain``."""
        if self._plain is not None and self.decoder is not None:
            self._event = self.decoder.event(self._plain)
            self._top.latest, self._meta.latest = self._event
            self._plain = None

    def _end_in_echo(self, event: RawEvent) -> None:
        self._adopt_plain()
        self.detect_mode(event)
        top, meta = self.appended()
        complete, merged = self._mode.incremental is not True, count_ids(event) > 1
        self._top.replace(event.top, None if complete else _echoed(event.top, top, merged=merged))
        self._meta.replace(event.meta, None if complete else _echoed(event.meta, meta, merged=merged))
        self._event = event

    def _check(self) -> None:
        """Raise UpstreamMalformed if an event of an incremental stream was lost."""
        event, ids = self._event, self._top.appended.get("output_ids")
        if event is None:
            raise UpstreamMalformed("The worker's stream has no event for one of its samples.")
        total = total_of(event)
        if not self._mode.incremental or ids is None or total < 0:
            return
        missing = total - count(bytes(ids) + b"]")
        # The Rust frontend leaves a stop token out of the ids, but counts it.
        stopped = b'"stop"' in bytes(event.meta.get("finish_reason", NULL))
        if missing and not (missing == 1 and stopped):
            raise UpstreamMalformed("The worker's stream counts more or fewer tokens than it sent.")


def index_of(event: RawEvent) -> int:
    """Return the index of an event's sample; without an index there is only one sample."""
    index = bytes(event.top.get("index", _NO_INDEX))
    return int(index) if index.isdigit() else 0


def is_echo(event: RawEvent) -> bool:
    """Return True if the frontend made an event with a finish reason in the scheduler's place."""
    return NOT_ECHOED not in event.meta and b'"abort"' in bytes(event.meta.get("finish_reason", NULL))


def _echoed(members: Members, before: Appended, *, merged: bool) -> Appended:
    """Return the appended values after an echo: its ids but for the last are new, its text and its lists are
    complete.

    ``merged``: it was merged with events that waited, so its values follow the parts that were in those.
    """
    appended: Appended = {}
    for name, value in members.items():
        if value == NULL:
            continue
        if name == "output_ids":
            appended[name] = bytearray(before.get(name, _NOTHING))
            append(appended[name], bytes(value)[:-1].rpartition(b",")[0].ljust(1, _NOTHING) + b"]")
        elif name == "text" or name in ECHOED:
            text, earlier = bytes(value), before.get(name, b"")
            appended[name] = (
                unrepeat(text, earlier or text[:1]) if merged or len(earlier) > 1 else bytearray(text[:-1])
            )
    return appended
