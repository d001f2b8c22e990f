"""Workers that were paused through the gateway.

Owns: what each of them lacks until it is resumed, as marks that all who share the fleet know. Must never
enter: a dialect, HTTP, asking a worker whether it is paused.

A worker is paused in kinds that know nothing of each other: one whose generation is paused and whose memory
was released serves again when both are undone. A kind has parts, as memory is released and taken back in
parts. All is forgotten when the worker is opened or removed by hand, and when another engine than the paused
one is at its URL.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from gateway.fleet.cordons.cordons import Words, parts_of, paused
from gateway.fleet.cordons.replication import CordonReplication
from gateway.fleet.worker import Worker

Parts = Words


class Pauses:
    """One per app. Returns, as Sharing.edit does, when the others know."""

    def __init__(self, sharing: CordonReplication) -> None:
        self._sharing = sharing
        self._marks = sharing.marks

    async def pause(
        self, workers: Collection[Worker], kind: str, parts: Collection[str]
    ) -> Mapping[Worker, Parts]:
        """``workers`` lack these ``parts`` of ``kind`` from now on; which of them each lacked not before."""
        wanted = frozenset(parts)
        added = {worker: wanted - parts_of(self._marks.of(worker.url), kind) for worker in workers}
        await self._sharing.edit({worker.url: _edit(kind, wanted, there=True) for worker in workers})
        return added

    async def resume(self, worker: Worker, kind: str, parts: Collection[str], *, every: bool = False) -> None:
        """It has these ``parts`` of ``kind`` again, and with ``every`` whatever else it lacks. Said though
        nobody here knows that it lacks them: it may have been paused elsewhere a moment ago."""
        lacks = parts_of(self._marks.of(worker.url), kind)
        back = lacks.union(parts) if every else frozenset(parts)
        if back:
            await self._sharing.edit({worker.url: _edit(kind, back, there=False)})


def _edit(kind: str, parts: Parts, *, there: bool) -> dict[str, bool]:
    return {paused(kind, part): there for part in parts}
