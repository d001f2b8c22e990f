"""A gateway of several processes, and clients that know which process serves them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.gateway import RawClient, eventually, until
from tests.support.generate import body_of
from tests.support.processes import PATIENCE


@dataclass
class Several:
    """A running gateway. ``process`` is the supervisor; ``log`` is the standard error of all processes."""

    process: asyncio.subprocess.Process
    log: Path
    port: int = 0
    clients: list[RawClient] = field(default_factory=list)

    @property
    def pids(self) -> list[int]:
        """The ids of the processes that serve."""
        pid = self.process.pid
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    async def connect(self) -> RawClient:
        """Connect to any process. The connection is closed at the end of the block."""
        client = await RawClient.connect(self.port)
        self.clients.append(client)
        return client

    async def client_of(self, pid: int) -> RawClient:
        """Connect until the process ``pid`` has accepted a connection; return that one."""
        while True:
            client = await self.connect()
            ours = client.writer.get_extra_info("sockname")[1]
            await until(lambda ours=ours: _inode(self.port, ours) != 0)  # type: ignore[misc]
            if _holds(pid, _inode(self.port, ours)):
                return client
            client.leave()

    async def get(self, path: str, pid: int) -> tuple[int, bytes]:
        """Return status and body of a GET that the process ``pid`` answers."""
        client = await self.client_of(pid)
        reply = await ask(client, path)
        client.leave()
        return reply

    async def ends(self) -> int:
        """Wait for the end of the gateway and return its exit code."""
        return await asyncio.wait_for(self.process.wait(), PATIENCE)


def request(tokens: int = 3, stream: bool = False, **extra: object) -> bytes:
    return json.dumps(body_of("sglang", tokens, stream, **extra)).encode()


async def ask(client: RawClient, path: str, body: bytes = b"", method: str = "GET") -> tuple[int, bytes]:
    """Return status and body of a request on an open connection."""
    client.request(path, body, method=method)
    return await client.reply()


async def generate(client: RawClient, **extra: Any) -> int:
    """Return the status of a generate request."""
    return (await ask(client, "/generate", request(**extra), "POST"))[0]


def metric(text: bytes, name: str) -> float:
    """Return the sum of all series of one metric."""
    spelled = re.compile(rf"(dynamo_frontend_)?{name}[ {{]")
    lines = [line for line in text.decode().splitlines() if spelled.match(line)]
    assert lines, f"no {name}"
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def _inode(server: int, client: int) -> int:
    """Return the inode of the server's socket of a connection; 0 until it is accepted."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if [int(each.partition(":")[2], 16) for each in fields[1:3]] == [server, client]:
            return int(fields[9])
    return 0


def _holds(pid: int, inode: int) -> bool:
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            if os.readlink(file) == f"socket:[{inode}]":
                return True
    return False


@asynccontextmanager
async def several(
    *workers: str, count: int = 2, stdout: Any = None, **variables: str
) -> AsyncIterator[Several]:
    """``tito-gateway serve --processes`` on a free port in front of ``workers``, ready; killed at the end."""
    flags = [flag for worker in workers for flag in ("--worker", worker)]
    with tempfile.NamedTemporaryFile() as file:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "gateway", "serve", "--host", "127.0.0.1", "--port", "0",
            "--processes", str(count), *flags,
            env={**os.environ, **variables},  # noqa: TID251 - a child needs the parent's
            stdout=stdout or asyncio.subprocess.DEVNULL, stderr=file, start_new_session=True,
        )  # fmt: skip
        gateway = Several(process, Path(file.name))
        try:
            await until(lambda: _listens(gateway), 30)
            await eventually(lambda: _ready(gateway), 30)
            yield gateway
        finally:
            for client in gateway.clients:
                client.leave()
            with suppress(ProcessLookupError):  # the other processes can outlive a supervisor that was killed
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def _listens(gateway: Several) -> bool:
    log = gateway.log.read_text()
    assert gateway.process.returncode is None, log
    found = re.search(r"listening on http://127.0.0.1:(\d+)", log)
    gateway.port = int(found[1]) if found else 0
    return gateway.port != 0


async def _ready(gateway: Several) -> bool:
    client = await gateway.connect()
    status, _ = await ask(client, "/ready")
    client.leave()
    return status == 200
