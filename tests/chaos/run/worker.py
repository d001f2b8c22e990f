"""A worker of the run: a simulated engine that keeps records and changes its behaviour by command.

``python -m tests.chaos.run.worker KIND PORT NUMBER LIFE TOKEN_DELAY BOOK`` reads one command a line from its
standard input.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import uvloop

from gateway.loop.tasks import Tasks
from gateway.sim import Drop, Half, Pace, Raw, Reply, Silence, SimConfig, SimServer
from gateway.sim.request_log import AbortCall, Arrival, Milestone, RequestLog
from gateway.sim.script import Script
from tests.chaos.run.dialects import dispatch_id_of, marker_of
from tests.chaos.run.records import Book, WorkerAbort, WorkerMilestone


def _refusal(status: int, message: str, *headers: tuple[str, str]) -> Reply:
    return Reply(status=status, body=json.dumps({"error": {"message": message}}).encode(), headers=headers)


#: Changes of a worker's replies, by name.
MOODS: dict[str, Script] = {
    "slow": Pace(prefill_base=0.5, token_delay=0.2),
    "400": _refusal(400, "The input is longer than the model's context length"),
    "429": _refusal(429, "too many requests", ("retry-after", "1")),
    "500": _refusal(500, "CUDA error"),
    "503": _refusal(503, "the queue is full"),
    "nonsense": Raw(data=b"\x00\x01 this is not HTTP \xff\xfe\r\n\r\n"),
    "half": Half(body=b'{"text": "half of a rep'),
    "drop": Drop(),
    "drop early": Drop(early=True),
    "cut": Pace(cut_after=2, cut="chunk"),
    "fail": Pace(fail_after=2),
    "fast failure": Pace(fail_after=0),
    "silence": Silence(),
}


class BookedLog(RequestLog):
    """A request log that also writes each milestone of the clients' requests into the records."""

    def __init__(self, limit: int, kind: str, process: tuple[int, int], book: Book) -> None:
        super().__init__(limit)
        self._kind = kind
        self._process = process
        self._book = book

    def record(self, arrival: Arrival, mark: Milestone) -> None:
        fresh = getattr(arrival, mark) is None
        super().record(arrival, mark)
        marker = marker_of(arrival.body) if fresh and arrival.generate else ""
        if marker:
            id = dispatch_id_of(self._kind, arrival.header("x-request-id"), arrival.body)
            at = getattr(arrival, mark)
            self._book.write(WorkerMilestone(*self._process, at, mark.value, marker, id))

    def called(self, abort: AbortCall) -> None:
        super().called(abort)
        self._book.write(WorkerAbort(*self._process, abort.at, abort.ids))


async def serve(kind: str, port: int, number: int, life: int, delay: float, book: Book) -> None:
    """Serve, and execute commands until standard input or the engine ends."""
    config = SimConfig(
        host="0.0.0.0",  # noqa: S104 - its name has one address of this machine, then another
        port=port,
        prefill_base=0.02,
        token_delay=delay,
        jitter=0.5,
        fast_health=True,
        log_limit=200,
        drain_poll=0.5,
        shutdown_timeout=60,
    )
    server = SimServer(kind, config, make_log=lambda limit: BookedLog(limit, kind, (number, life), book))
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    tasks = Tasks()
    async with server:
        ends = [tasks.spawn(obey(server, lines), "commands"), tasks.spawn(server.exited(), "exit")]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        await tasks.stop()


async def obey(server: SimServer, lines: asyncio.StreamReader) -> None:
    """Execute commands until there are no more."""
    while line := await lines.readline():
        execute(server, json.loads(line))


def execute(server: SimServer, command: dict[str, Any]) -> None:
    """Execute a command: ``mood`` changes the next ``times`` replies; ``calm`` ends that; ``end`` tells the
    engine to end; ``close idle`` closes idle connections for a second, so that some requests meet it.
    """
    if command["do"] == "mood":
        server.behave(MOODS[command["mood"]], times=command["times"])
    elif command["do"] == "calm":
        server.engine.scripts.clear()
    elif command["do"] == "end":
        server.terminate()
    else:
        close_idle(server, 50)


def close_idle(server: SimServer, times: int) -> None:
    """Close all idle connections now, and again every 20 ms."""
    server.close_idle()
    if times > 1:
        asyncio.get_running_loop().call_later(0.02, close_idle, server, times - 1)


def main(arguments: list[str]) -> None:
    kind, port, number, life, delay, path = arguments
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(kind, int(port), int(number), int(life), float(delay), Book(Path(path))))


if __name__ == "__main__":
    main(sys.argv[1:])
