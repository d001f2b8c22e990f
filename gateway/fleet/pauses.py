"""Workers that were paused through the gateway.

Owns: what each of them lacks until it is resumed, and the hold that keeps requests from it meanwhile. Must
never enter: a dialect, HTTP, asking a worker whether it is paused.

A worker is paused in kinds that know nothing of each other: one whose generation is paused and whose memory
was released serves again when both are undone. A kind has parts, as memory is released and taken back in
parts. All is forgotten with the hold: when the worker is opened by hand, and when it died, as the engine
after it was paused by nobody.
"""

from __future__ import annotations

from collections.abc import Collection
from weakref import WeakKeyDictionary

from gateway.fleet.registry import Fleet
from gateway.fleet.states import Hold
from gateway.fleet.worker import Worker

Parts = frozenset[str]
Lacks = dict[str, Parts]


class Pauses:
    """One per app."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._lacks: WeakKeyDictionary[Worker, Lacks] = WeakKeyDictionary()

    def pause(self, worker: Worker, kind: str, parts: Collection[str]) -> Parts:
        """``worker`` lacks these ``parts`` of ``kind`` from now on; which of them it lacked not before."""
        lacks = self._of(worker)
        before = lacks.get(kind, frozenset())
        lacks[kind] = before.union(parts)
        self._lacks[worker] = lacks
        self._show(worker, lacks)
        return lacks[kind] - before

    def resume(self, worker: Worker, kind: str, parts: Collection[str] | None) -> None:
        """It has these ``parts`` of ``kind`` again; None: all of them."""
        lacks = self._of(worker)
        left = frozenset[str]() if parts is None else lacks.get(kind, frozenset()).difference(parts)
        if left:
            lacks[kind] = left
        else:
            lacks.pop(kind, None)
        self._show(worker, lacks)

    def _of(self, worker: Worker) -> Lacks:
        return self._lacks.get(worker, {}) if Hold.PAUSED in worker.holds else {}

    def _show(self, worker: Worker, lacks: Lacks) -> None:
        if lacks:
            self._fleet.hold(worker, Hold.PAUSED, f"paused through the gateway: {', '.join(sorted(lacks))}")
        else:
            self._fleet.open(worker, Hold.PAUSED)
