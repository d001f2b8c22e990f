"""A client that asks for the same things at a steady pace and notes how long each answer took.

Owns: a process of its own, so that what a test does meanwhile takes nothing from it: ``python -m
tests.chaos.steady``. Must never enter: what is quick enough.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field

import aiohttp


@dataclass
class Answers:
    """``failures`` are statuses but 200, and errors; ``seconds`` how long answers took, the longest last."""

    failures: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    @property
    def p99(self) -> float:
        """One in a hundred took longer."""
        return self.seconds[int(len(self.seconds) * 0.99) - 1]


@asynccontextmanager
async def steadily(*urls: str, interval: float, body: object = None) -> AsyncIterator[Answers]:
    """Ask each of ``urls`` all ``interval`` seconds, from the first answer to the end of the block.

    What came of it is known after the block. With a ``body`` they are posted to.
    """
    pipe = asyncio.subprocess.PIPE
    asked = json.dumps({"urls": urls, "interval": interval, "body": body and json.dumps(body)})
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.chaos.steady", asked, stdin=pipe, stdout=pipe
    )
    answers = Answers()
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"begun\n"
        yield answers
        out, _ = await process.communicate(b"")
        vars(answers).update(json.loads(out))
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


async def _ask(urls: Sequence[str], interval: float, body: str | None) -> Answers:
    found = Answers()
    over = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    timeout = aiohttp.ClientTimeout(30)
    async with aiohttp.ClientSession(timeout=timeout) as session, asyncio.TaskGroup() as asking:
        print("begun", flush=True)
        while not over.done():
            for url in urls:
                asking.create_task(_once(session, url, body, found))
            await asyncio.wait([over], timeout=interval)
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
