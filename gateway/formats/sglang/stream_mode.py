"""Telling an incremental stream from a cumulative one.

Owns: the judgement. Must never enter: what follows from it.

The mode is a flag of the server, nothing in an event names it, and what a worker said when it was probed may
be out of date. But an event counts its tokens: in a cumulative stream the total is the number of its ids, in
an incremental one the number of all ids so far.
"""

from __future__ import annotations

from gateway.formats.sglang.raw_members import NULL, RawEvent, count

INCREMENTAL = "incremental"
CUMULATIVE = "cumulative"


class StreamMode:
    """Whether a stream is incremental, None until its events tell.

    ``declared`` is what the worker said of itself. It decides where the events leave both open.
    """

    __slots__ = ("declared", "incremental")

    def __init__(self, declared: str | None) -> None:
        self.declared = declared
        self.incremental: bool | None = None

    def observe(self, ids: bytes | bytearray, text: bytes | bytearray, event: RawEvent) -> None:
        """Compare an event with the ids and the text that its sample had before, which lack their ends.

        The first event of a sample tells nothing: it is the same in both modes.
        """
        if len(ids) > 1:
            self.incremental = self._by_ids(ids, event)
        elif len(text) > 1:
            self.incremental = self._otherwise(bytes(event.top.get("text", NULL)).startswith(text))

    def observe_echo(self, ids: bytes | bytearray, event: RawEvent) -> None:
        """The same for an echo: its ids are all there are, or those not sent yet and the last once more."""
        total, had, here = total_of(event), count(bytes(ids) + b"]"), count_ids(event)
        whole, rest = here == total, had + here == total + 1
        if here == 0 or total == had == here == 1:
            # The same in both modes.
            return
        if whole != rest:
            self.incremental = rest
        else:
            self.incremental = self._otherwise(_repeats(ids, event))

    def _by_ids(self, ids: bytes | bytearray, event: RawEvent) -> bool:
        repeats = _repeats(ids, event)
        total, had, here = total_of(event), count(bytes(ids) + b"]"), count_ids(event)
        if here == total and repeats:
            return False
        if had + here == total and not repeats:
            return True
        # Both may be: the Rust frontend keeps a stop token out of the ids, and counts it.
        return self._otherwise(repeats and had + here != total)

    def _otherwise(self, repeats: bool) -> bool:
        return not repeats if self.declared is None else self.declared == INCREMENTAL


def total_of(event: RawEvent) -> int:
    """The tokens that an event says its sample has, -1 where it does not say."""
    total = bytes(event.meta.get("completion_tokens", NULL))
    return int(total) if total.isdigit() else -1


def count_ids(event: RawEvent) -> int:
    """The ids in an event. Raises UpstreamMalformed where they are no list."""
    ids = event.top.get("output_ids", NULL)
    return 0 if ids == NULL else count(ids)


def _repeats(held: bytes | bytearray, event: RawEvent) -> bool:
    """Whether an event's ids begin with those held."""
    ids = bytes(event.top.get("output_ids", NULL))[:-1]
    return ids.startswith(held) and (len(held) <= 1 or ids[len(held) : len(held) + 1] in (b"", b","))
