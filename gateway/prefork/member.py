"""One process of several: what it does beside its exchanges.

Owns: taking part, from its start to its last word. Must never enter: the channel, what is told.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

from gateway.fleet.cordons.replication import CordonReplication
from gateway.fleet.registry import Fleet
from gateway.fleet.states import WorkerState
from gateway.formats.base import AnyFormat
from gateway.loop.tasks import Tasks
from gateway.prefork.aggregate import Aggregate, PreforkAborter
from gateway.prefork.frames import Verb
from gateway.prefork.peers import Peers
from gateway.prefork.replication import WideMarks
from gateway.proxy.aborts import Aborter
from gateway.proxy.lifecycle import Lifecycle
from gateway.telemetry.metrics import Metrics

#: Seconds that a process which replaces another one waits for its workers' probes before it accepts requests.
ACQUAINTANCE = 1.0


class Member:
    """``aggregate`` and ``aborter`` are for the control plane."""

    def __init__(  # noqa: PLR0913 - whatever the processes of a gateway have in common
        self,
        peers: Peers,
        metrics: Metrics,
        lifecycle: Lifecycle,
        aborter: Aborter,
        formats: Mapping[str, AnyFormat],
        sharing: CordonReplication,
    ) -> None:
        self._peers = peers
        self._tasks = Tasks()
        self.aggregate = Aggregate(peers, metrics)
        self.aborter = PreforkAborter(peers, aborter, formats)
        self._marks = WideMarks(peers, sharing)
        peers.on_drain = lifecycle.stop

    async def start(self, fleet: Fleet) -> None:
        """Begin to tell what is counted and whether ``fleet`` can serve, and to answer; return once it is
        known whom the others hold."""
        await self._peers.open()
        await self._marks.learn()
        self._tasks.keep(lambda: self._tell_usable(fleet), "report of whether there is a worker")
        self._tasks.keep(self.aggregate.report, "report of what was counted")

    async def meet(self, fleet: Fleet) -> None:
        """Let a process that replaces another one get to know its workers: the others serve meanwhile, and
        whom this one accepted it would have to refuse."""
        if not self._peers.again:
            return
        try:
            async with asyncio.timeout(ACQUAINTANCE):
                with fleet.follow() as changes:
                    while any(worker.state is WorkerState.JOINING for worker in fleet.workers):
                        await changes.get()
        except TimeoutError:
            pass  # a worker that is away does not keep it from serving with the others

    async def _tell_usable(self, fleet: Fleet) -> None:
        told = False
        with fleet.follow() as changes:
            while True:
                usable = any(worker.usable for worker in fleet.workers)
                if usable is not told:
                    self._peers.tell(Verb.USABLE, json.dumps(usable).encode())
                    told = usable
                await changes.get()

    async def stop(self) -> None:
        """Say the last word: what is counted after it is lost."""
        await self.aborter.close()
        await self._tasks.stop()
        self.aggregate.report_now()
        await self._peers.close()
