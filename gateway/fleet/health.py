"""Finding out what stands behind a URL, and whether it still does.

Owns: probing, its pace, and what a probe's result means for a worker's state. Must never enter: a dialect
(formats say what to ask and read the answers), the data plane.

A worker counts as dead when its connections are refused, or when two probes in a row fail; one good probe
clears it. A whole reply to a request is as good as a probe. Statuses of replies never count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import httpx

from gateway.fleet.registry import Fleet
from gateway.fleet.worker import Worker, WorkerState
from gateway.formats.base import AnyFormat, ProbeReply, ProbeRequest, WorkerInfo
from gateway.tasks import Tasks

#: A probe that takes longer has failed, in seconds.
PROBE_TIMEOUT = 5.0
#: How often a worker that is not ready is asked again, in seconds.
RECOVERY_INTERVAL = 0.5
#: Failed probes in a row that make a worker dead.
STRIKES = 2
#: A ready worker is asked for its whole description on every n-th probe, else only for its health.
DESCRIBE_EVERY = 6


class Unreachable(Exception):
    """No TCP connection: nobody listens there now."""


def probe_client() -> httpx.AsyncClient:
    """The HTTP client for probes: no proxy from the environment, no redirects, no pool limit."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=3.0)
    return httpx.AsyncClient(timeout=PROBE_TIMEOUT, limits=limits, trust_env=False, follow_redirects=False)


async def ask(client: httpx.AsyncClient, worker: Worker, question: ProbeRequest) -> ProbeReply | None:
    """One question; None when there was no whole answer. Raises Unreachable."""
    headers = {"connection": "close"}
    if worker.authorization is not None:
        headers["authorization"] = worker.authorization.decode("latin-1")
    if question.body is not None:
        headers["content-type"] = "application/json"
    url = worker.url.rstrip("/") + question.target
    try:
        reply = await client.request(question.method, url, content=question.body, headers=headers)
    except httpx.ConnectError as error:
        raise Unreachable(str(error) or "connection refused") from error
    except (httpx.HTTPError, httpx.InvalidURL):
        return None
    return ProbeReply(reply.status_code, reply.content)


async def describe(
    client: httpx.AsyncClient, worker: Worker, formats: Iterable[AnyFormat]
) -> Mapping[str, WorkerInfo] | None:
    """What each format (or only the one the worker was declared to speak) makes of the worker, by name.

    None: it answered no question at all. Raises Unreachable.
    """
    asked = [format for format in formats if worker.only in (None, format.name)]
    questions = {(q.method, q.target, q.body): q for format in asked for q in format.probes}
    replies = await asyncio.gather(
        *(ask(client, worker, question) for question in questions.values()), return_exceptions=True
    )
    for reply in replies:
        if isinstance(reply, BaseException):
            raise reply
    answers = {
        question.target: reply
        for question, reply in zip(questions.values(), replies, strict=True)
        if isinstance(reply, ProbeReply)
    }
    if not answers:
        return None
    infos = {format.name: format.identify(answers) for format in asked}
    return {name: info for name, info in infos.items() if info is not None}


class Health:
    """Watches every worker of a fleet. ``interval`` is the seconds between two probes of a ready worker."""

    def __init__(
        self, fleet: Fleet, formats: Iterable[AnyFormat], client: httpx.AsyncClient, interval: float
    ) -> None:
        self._fleet = fleet
        self._formats = {format.name: format for format in formats}
        self._client = client
        self._interval = interval
        self._tasks = Tasks()
        self._hurry: dict[str, asyncio.Event] = {}

    def watch(self, worker: Worker) -> None:
        """Probe ``worker`` now and from now on."""
        self._hurry[worker.url] = asyncio.Event()
        self._tasks.spawn(self._watch(worker), f"probe {worker.url}")

    def suspect(self, worker: Worker, *, refused: bool) -> None:
        """The data plane met a failure: a refused connection, or else a broken reply. Probe soon."""
        if refused and worker.state is WorkerState.READY:
            self._fleet.set_state(worker, WorkerState.DEAD, "refused a connection")
        hurry = self._hurry.get(worker.url)
        if hurry is not None:
            hurry.set()

    async def stop(self) -> None:
        """End all probing and close the client."""
        await self._tasks.stop()
        await self._client.aclose()

    async def _watch(self, worker: Worker) -> None:
        loop, hurry = asyncio.get_running_loop(), self._hurry[worker.url]
        asked_at, rounds, hurried = loop.time(), 0, True
        while True:
            ready = worker.state is WorkerState.READY
            whole = not ready or rounds % DESCRIBE_EVERY == 0
            if ready and not whole and not hurried and worker.last_reply_at > asked_at:
                worker.strikes = 0  # its replies tell as much as a probe would
            else:
                await self._probe(worker, whole=whole)
            asked_at, rounds = loop.time(), rounds + 1
            ready = worker.state is WorkerState.READY
            hurried = await _rang(hurry, self._interval if ready else min(self._interval, RECOVERY_INTERVAL))

    async def _probe(self, worker: Worker, *, whole: bool) -> None:
        try:
            if whole:
                infos = await describe(self._client, worker, self._formats.values())
                self._described(worker, infos)
            elif await self._healthy(worker):
                worker.strikes = 0
            else:
                self._struck(worker, "its health probe failed")
        except Unreachable as error:
            self._unreachable(worker, f"nobody listens: {error}")

    async def _healthy(self, worker: Worker) -> bool:
        for name, info in worker.infos.items():
            if info.usable:
                reply = await ask(self._client, worker, self._formats[name].health)
                # Builds without the health route answer 404, which shows life as well as 200 does.
                return reply is not None and reply.status in (200, 404)
        return False

    def _described(self, worker: Worker, infos: Mapping[str, WorkerInfo] | None) -> None:
        if infos is None:
            return self._struck(worker, "it gave no answer to any probe")
        worker.strikes = 0
        worker.infos = infos
        if any(info.usable for info in infos.values()):
            self._fleet.set_state(worker, WorkerState.READY)
        elif infos:
            reasons = "; ".join(info.reason for info in infos.values())
            self._fleet.set_state(worker, WorkerState.UNUSABLE, reasons)
        else:
            spoken = worker.only or " nor ".join(self._formats)
            self._fleet.set_state(worker, WorkerState.UNUSABLE, f"it speaks neither {spoken}")

    def _struck(self, worker: Worker, reason: str) -> None:
        worker.strikes += 1
        if worker.state is WorkerState.JOINING or worker.strikes < STRIKES:
            worker.reason = reason
        elif worker.state is not WorkerState.DEAD:
            self._fleet.set_state(worker, WorkerState.DEAD, reason)

    def _unreachable(self, worker: Worker, reason: str) -> None:
        if worker.state is WorkerState.JOINING:
            worker.reason = reason
        elif worker.state is not WorkerState.DEAD:
            self._fleet.set_state(worker, WorkerState.DEAD, reason)


async def _rang(bell: asyncio.Event, seconds: float) -> bool:
    """Wait ``seconds``, or less if the bell rings; True if it did."""
    try:
        async with asyncio.timeout(seconds):
            await bell.wait()
    except TimeoutError:
        return False
    bell.clear()
    return True
