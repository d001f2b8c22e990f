"""A client that sends the same requests at a steady pace and records the latency of each reply.

Owns: a process, ``python -m tests.chaos.steady``, whose latencies do not depend on the work of the test. Must
never enter: bounds.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field

import aiohttp

from tests.support.processes import spawned


@dataclass
class Answers:
    """The replies. ``failures`` are statuses other than 200, and errors; ``seconds`` sorted latencies."""

    failures: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def p99(self) -> float:
        """Return the 99th percentile of the latencies, in seconds."""
        return self.seconds[int(len(self.seconds) * 0.99) - 1]


@asynccontextmanager
async def steadily(*urls: str, interval: float, body: object = None) -> AsyncIterator[Answers]:
    """Send a request to each of ``urls`` every ``interval`` seconds until the end of the block.

    A GET, or a POST of ``body`` if there is one. The result is complete after the block.
    """
    orders = json.dumps({"urls": urls, "interval": interval, "body": body and json.dumps(body)})
    answers = Answers()
    async with spawned("tests.chaos.steady", orders) as process:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"begun\n"
        yield answers
        process.terminate()
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        vars(answers).update(json.loads(out))


async def _ask(urls: Sequence[str], interval: float, body: str | None) -> Answers:
    found, over = Answers(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    timeout = aiohttp.ClientTimeout(30)
    async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as asking:
        print("begun", flush=True)
        while not over.is_set():
            for url in urls:
                asking.create_task(_once(session, url, body, found))
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), interval)
    found.seconds.sort()
    return found


async def _once(session: aiohttp.ClientSession, url: str, body: str | None, found: Answers) -> None:
    began = time.monotonic()
    headers = {"content-type": "application/json"}
    try:
        async with session.request(
            "GET" if body is None else "POST", url, data=body, headers=headers
        ) as reply:
            await reply.read()
            if reply.status != 200:
                found.failures.append(str(reply.status))
    except (aiohttp.ClientError, TimeoutError) as error:
        found.failures.append(repr(error))
    found.seconds.append(time.monotonic() - began)


if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(_ask(**json.loads(sys.argv[1]))))))
