"""A client in a process of its own, so that its latencies do not depend on the work of the test."""

from __future__ import annotations

import asyncio
import json
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field

import aiohttp

from tests.support.processes import spawned

#: The usual limit of a service.
OPEN_FILES = 8192


@dataclass
class Answers:
    """The replies. ``failures`` are statuses other than 200, and errors; ``seconds`` sorted latencies."""

    failures: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def p99(self) -> float:
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


async def burst(url: str, count: int, body: object) -> Answers:
    """Send ``count`` requests at once, and return when each has its reply."""
    orders = json.dumps({"urls": [url], "count": count, "interval": None, "body": json.dumps(body)})
    async with spawned("tests.chaos.steady", orders) as process:
        out, err = await process.communicate()
        assert process.returncode == 0, err.decode()
        return Answers(**json.loads(out.removeprefix(b"begun\n")))


async def _ask(urls: Sequence[str], interval: float | None, body: str | None, count: int = 1) -> Answers:
    found, over = Answers(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    timeout, connector = (
        aiohttp.ClientTimeout(None if interval is None else 30),
        aiohttp.TCPConnector(limit=0),
    )
    async with (
        aiohttp.ClientSession(timeout=timeout, connector=connector) as session,
        asyncio.TaskGroup() as asking,
    ):
        print("begun", flush=True)
        while not over.is_set():
            for url in (*urls,) * count:
                asking.create_task(_once(session, url, body, found))
            if interval is None:
                break
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), interval)
    found.seconds.sort()
    return found


async def _once(session: aiohttp.ClientSession, url: str, body: str | None, found: Answers) -> None:
    began = time.monotonic()
    method, headers = "GET" if body is None else "POST", {"content-type": "application/json"}
    try:
        async with session.request(method, url, data=body, headers=headers) as reply:
            await reply.read()
            found.failures += [] if reply.status == 200 else [str(reply.status)]
    except (aiohttp.ClientError, TimeoutError) as error:
        found.failures.append(repr(error))
    found.seconds.append(time.monotonic() - began)


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    print(json.dumps(asdict(asyncio.run(_ask(**json.loads(sys.argv[1]))))))
