"""One gateway process of several: what it does besides its exchanges.

Owns: its part in the shared work, from its start to its final counts. Must never enter: the channel, the
content of messages.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping

from gateway.fleet.cordons import Cordons
from gateway.fleet.members import FleetMembership
from gateway.fleet.registry import Fleet
from gateway.fleet.states import WorkerState
from gateway.formats.base import AnyFormat
from gateway.loop.tasks import Tasks
from gateway.prefork.aggregate import Aggregate, PreforkAborter
from gateway.prefork.creators import PeerCreators
from gateway.prefork.descriptions import Describe, PreforkDescriber
from gateway.prefork.findings import PeerFindings
from gateway.prefork.frames import Verb
from gateway.prefork.peers import Peers
from gateway.prefork.replication import PeerCordons
from gateway.proxy.aborts import Aborter
from gateway.proxy.lifecycle import Lifecycle
from gateway.proxy.query_of_death import QueryOfDeathGuard
from gateway.proxy.resources import Resources
from gateway.telemetry.exporter import MetricsExporter

#: Seconds that a replacement process waits for the first probes of its workers before it accepts requests.
FIRST_PROBES_TIMEOUT = 1.0


class ProcessLink:
    """A process of several.

    ``aggregate``, ``aborter`` and ``describer`` are the control plane's views of all of them. ``describe``
    asks a worker for this process what it serves.
    """

    def __init__(  # noqa: PLR0913 - one parameter for each thing that the processes share
        self,
        peers: Peers,
        exporter: MetricsExporter,
        lifecycle: Lifecycle,
        aborter: Aborter,
        formats: Mapping[str, AnyFormat],
        cordons: Cordons,
        members: FleetMembership,
        fleet: Fleet,
        describe: Describe,
        query_of_death: QueryOfDeathGuard,
        resources: Resources,
    ) -> None:
        self._peers = peers
        self._tasks = Tasks()
        self.aggregate = Aggregate(peers, exporter)
        self.aborter = PreforkAborter(peers, aborter, formats)
        self.describer = PreforkDescriber(peers, fleet, describe)
        self._cordons = PeerCordons(peers, cordons, members)
        self._findings = PeerFindings(peers, query_of_death)
        self._creators = PeerCreators(peers, resources, fleet)
        peers.on_drain(lifecycle.stop)

    async def start(self, fleet: Fleet) -> None:
        """Begin to answer the other processes, and to report counts and whether ``fleet`` is usable.

        Return once the cordons and queries of death that the other processes know count here.
        """
        await self._peers.open()
        await asyncio.gather(self._cordons.fetch(), self._findings.fetch())
        self._tasks.keep_running(lambda: self._report_usable(fleet), "report of usable workers")
        self._tasks.keep_running(self.aggregate.report_counts, "report of counts")
        self._tasks.keep_running(self._peers.ids.keep_up, "lengths of ids")

    async def wait_for_workers(self, fleet: Fleet) -> None:
        """Wait until no worker is joining, in a process that replaces another one.

        It would refuse the requests that come before that, while its peers can serve them.
        """
        if not self._peers.replacement:
            return
        try:
            async with asyncio.timeout(FIRST_PROBES_TIMEOUT):
                with fleet.follow() as changes:
                    while any(worker.state is WorkerState.JOINING for worker in fleet.workers):
                        await changes.get()
        except TimeoutError:
            pass  # an unreachable worker must not keep this process from serving with the others

    async def _report_usable(self, fleet: Fleet) -> None:
        reported = False
        with fleet.follow() as changes:
            while True:
                usable = any(worker.usable for worker in fleet.workers)
                if usable is not reported:
                    self._peers.report(Verb.USABLE, json.dumps(usable).encode())
                    reported = usable
                await changes.get()

    async def stop(self) -> None:
        """Report the final counts and close the channel. What is counted after that is lost."""
        await self.aborter.close()
        await self.describer.close()
        await self._tasks.stop()
        self.aggregate.report_counts_now()
        await self._peers.close()
