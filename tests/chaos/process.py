"""A worker as a process of its own, which can be killed: ``python -m tests.chaos.process KIND BEHAVIOUR``.

Owns: the behaviours such a worker can have, its log on its output, one JSON object a line. Must never enter:
what is right.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvloop

from tests.chaos.worker import Behaviour, Call, Worker, good, wants_stream
from tests.support.processes import spawned

#: Tokens of a reply that is too long to be held by the gateway until it is whole.
LONG = 600_000


def _say(**event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


async def _counted(call: Call) -> None:
    """As was asked, and said so."""
    _say(started=call.id)
    await good(call)


async def _broken(call: Call, tokens: int = 3) -> None:
    """Five events, or half of a whole reply; then nothing until somebody ends this process."""
    _say(started=call.id)
    if wants_stream(call):
        call.stream()
        for _ in range(5):
            call.event()
    else:
        call.half(tokens)
    _say(sent=call.id)
    await asyncio.Event().wait()


async def _long_broken(call: Call) -> None:
    """The same, of a long reply."""
    await _broken(call, LONG)


async def _digest(call: Call) -> None:
    """A good reply that tells, in a header, what the request's body was."""
    digest = await asyncio.to_thread(lambda: hashlib.sha256(call.body).hexdigest())
    call.reply(None, 200, (b"x-digest", digest.encode()))


BEHAVIOURS: dict[str, Behaviour] = {
    "counted": _counted,
    "broken": _broken,
    "long_broken": _long_broken,
    "digest": _digest,
}


class WorkerProcess:
    """The process of one such worker."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.url = url
        self._process = process

    async def kill(self) -> None:
        """At once, as an engine that runs out of memory; gone when this returns."""
        self._process.kill()
        await self._process.wait()

    def stop(self) -> None:
        """Keep it from running on, as an engine that waits for another one for ever."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    async def event_with(self, word: str) -> dict[str, Any]:
        """The next event of its log that has ``word``."""
        while (event := await _next(self._process)) is not None:
            if word in event:
                return event
        raise AssertionError(f"it ended without saying {word}")

    async def started(self) -> list[str]:
        """Return the ids of all requests received. Call it after ``kill``, never ``event_with`` before."""
        found = []
        while (event := await _next(self._process)) is not None:
            found += [event["started"]] if "started" in event else []
        return found


async def _next(process: asyncio.subprocess.Process) -> dict[str, Any] | None:
    assert process.stdout is not None
    line = await process.stdout.readline()
    return json.loads(line) if line else None


@asynccontextmanager
async def worker_process(kind: str, behaviour: str) -> AsyncIterator[WorkerProcess]:
    """One that listens. Gone after the block."""
    async with spawned("tests.chaos.process", kind, behaviour) as process:
        event = await _next(process)
        assert event is not None, "it did not start"
        yield WorkerProcess(process, event["url"])


async def _serve(kind: str, behaviour: str) -> None:
    worker = Worker(kind, BEHAVIOURS[behaviour])
    await worker.start()
    _say(url=worker.url)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(*sys.argv[1:]))
