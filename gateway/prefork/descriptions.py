"""Descriptions of workers in all processes of the gateway.

Owns: that a worker is asked anew what it serves by every process, whichever of them got the call that changed
it. Must never enter: how a worker is asked.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable

from gateway.fleet.registry import Fleet
from gateway.fleet.worker import Worker
from gateway.loop.tasks import Tasks
from gateway.prefork.frames import Verb
from gateway.prefork.hub import ANSWER_TIMEOUTS
from gateway.prefork.peers import SLACK, Peers, PeersUnavailable, Reply

log = logging.getLogger(__name__)

#: Returns once this process knows what a worker serves now.
Describe = Callable[[Worker], Awaitable[None]]


class PreforkDescriber:
    """Describes the workers of ``fleet`` in all processes; ``local`` does so in this one."""

    def __init__(self, peers: Peers, fleet: Fleet, local: Describe) -> None:
        self._peers = peers
        self._fleet = fleet
        self._local = local
        self._tasks = Tasks()
        peers.on_query(Verb.DESCRIBE, self._answer)

    async def describe(self, worker: Worker) -> None:
        """Return once all processes know what ``worker`` serves now, or did not answer in time."""
        await asyncio.gather(self._local(worker), self._describe_elsewhere(worker))

    async def close(self) -> None:
        """Stop the descriptions that other processes asked for."""
        await self._tasks.stop()

    async def _describe_elsewhere(self, worker: Worker) -> None:
        timeout = ANSWER_TIMEOUTS[Verb.DESCRIBE] + SLACK
        try:
            answers = await self._peers.ask(Verb.DESCRIBE, json.dumps(worker.url).encode(), timeout)
        except PeersUnavailable as error:
            return log.warning(
                "the other processes may not know what worker %s serves: %s", worker.url, error
            )
        if answers.missing:
            log.warning("%d processes do not know yet what worker %s serves", answers.missing, worker.url)

    def _answer(self, query: bytes, reply: Reply) -> None:
        self._tasks.spawn(self._describe_here(json.loads(query), reply), "description for another process")

    async def _describe_here(self, url: str, reply: Reply) -> None:
        worker = self._fleet.find(url)
        if worker is not None:
            await self._local(worker)
        reply(b"null")
