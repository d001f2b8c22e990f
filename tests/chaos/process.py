"""A worker in its own process, which can be killed: ``python -m tests.chaos.process KIND BEHAVIOUR``.

Owns: the behaviours of such a worker, and its log: one JSON object a line on its output. Must never enter:
expectations.
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

#: Tokens of a reply that is too long for the gateway to buffer until it is complete.
LONG = 600_000


def _log(**event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


async def _counted(call: Call) -> None:
    """Log the request and answer it as requested."""
    _log(started=call.id)
    await good(call)


async def _broken(call: Call, tokens: int = 3) -> None:
    """Send five events or half of a unary reply, then nothing until the process is killed."""
    _log(started=call.id)
    if wants_stream(call):
        call.stream()
        for _ in range(5):
            call.event()
    else:
        call.half(tokens)
    _log(sent=call.id)
    await asyncio.Event().wait()


async def _long_broken(call: Call) -> None:
    """Do the same with a long reply."""
    await _broken(call, LONG)


async def _digest(call: Call) -> None:
    """Answer with a header that contains a digest of the request's body."""
    digest = await asyncio.to_thread(lambda: hashlib.sha256(call.body).hexdigest())
    call.reply(None, 200, (b"x-digest", digest.encode()))


BEHAVIOURS: dict[str, Behaviour] = {
    "counted": _counted,
    "broken": _broken,
    "long_broken": _long_broken,
    "digest": _digest,
}


class WorkerProcess:
    """The process of a worker."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.url = url
        self._process = process

    async def kill(self) -> None:
        """Kill the process with SIGKILL, as when an engine runs out of memory; return once it has ended."""
        self._process.kill()
        await self._process.wait()

    def stop(self) -> None:
        """Suspend the process, like an engine that waits for another one for ever."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    async def event_with(self, word: str) -> dict[str, Any]:
        """Return the next event of the log that has ``word``."""
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
    """Start a worker, wait until it listens, and kill it after the block."""
    async with spawned("tests.chaos.process", kind, behaviour) as process:
        event = await _next(process)
        assert event is not None, "it did not start"
        yield WorkerProcess(process, event["url"])


async def _serve(kind: str, behaviour: str) -> None:
    worker = Worker(kind, BEHAVIOURS[behaviour])
    await worker.start()
    _log(url=worker.url)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(_serve(*sys.argv[1:]))
