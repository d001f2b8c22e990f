"""Detection of a stream's mode: incremental or cumulative.

Owns: the decision. Must never enter: what follows from it.

The mode is a flag of the server, no event names it, and what a worker declared when it was probed may be out
of date. But an event counts its tokens: in a cumulative stream the total is the number of its ids, in an
incremental one the number of all ids so far (observed at SGLang 0.5.22).
"""

from __future__ import annotations

from gateway.formats.sglang.raw_members import NULL, RawEvent, count

INCREMENTAL = "incremental"
CUMULATIVE = "cumulative"


class StreamMode:
    """The mode of a stream: ``incremental`` is None until an event shows it.

    ``declared`` is the mode the worker declares. It decides where the events leave both possible.
    """

    __slots__ = ("declared", "incremental")

    def __init__(self, declared: str | None) -> None:
        self.declared = declared
        self.incremental: bool | None = None

    def observe(self, ids: bytes | bytearray, text: bytes | bytearray, event: RawEvent) -> None:
        """Compare an event with the ids and the text that its sample had before, both without their closing
        bracket.

        The first event of a sample shows nothing: it is the same in both modes.
        """
        if len(ids) > 1:
            self.incremental = self._by_ids(ids, event)
        elif len(text) > 1:
            self.incremental = self._otherwise(bytes(event.top.get("text", NULL)).startswith(text))

    def observe_echo(self, ids: bytes | bytearray, event: RawEvent) -> None:
        """Compare an echo with the ids before: it has all ids, or those not yet sent and the last one
        again.
        """
        total, before, in_event = total_of(event), count(bytes(ids) + b"]"), count_ids(event)
        complete, rest = in_event == total, before + in_event == total + 1
        if in_event == 0 or total == before == in_event == 1:
            # It is the same in both modes.
            return
        if complete != rest:
            self.incremental = rest
        else:
            self.incremental = self._otherwise(_repeats(ids, event))

    def _by_ids(self, ids: bytes | bytearray, event: RawEvent) -> bool:
        repeats = _repeats(ids, event)
        total, before, in_event = total_of(event), count(bytes(ids) + b"]"), count_ids(event)
        if in_event == total and repeats:
            return False
        if before + in_event == total and not repeats:
            return True
        # Both are possible: the Rust frontend leaves a stop token out of the ids, but counts it.
        return self._otherwise(repeats and before + in_event != total)

    def _otherwise(self, repeats: bool) -> bool:
        return not repeats if self.declared is None else self.declared == INCREMENTAL


def total_of(event: RawEvent) -> int:
    """Return the token count of an event's sample, -1 if the event has none."""
    total = bytes(event.meta.get("completion_tokens", NULL))
    return int(total) if total.isdigit() else -1


def count_ids(event: RawEvent) -> int:
    """Return the number of ids in an event. Raises UpstreamMalformed if they are no list."""
    ids = event.top.get("output_ids", NULL)
    return 0 if ids == NULL else count(ids)


def _repeats(appended: bytes | bytearray, event: RawEvent) -> bool:
    """Return True if an event's ids begin with those before it."""
    ids = bytes(event.top.get("output_ids", NULL))[:-1]
    return ids.startswith(appended) and (
        len(appended) <= 1 or ids[len(appended) : len(appended) + 1] in (b"", b",")
    )
