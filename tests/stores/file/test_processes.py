"""A file of workers that several real processes write, some of which are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from gateway.stores.file.document import Document
from tests.stores.contract import ONE, TWO, Open
from tests.stores.watching import watching

ROOT = Path(__file__).parents[3]

IMPORTS = """
import asyncio, os, pathlib, signal, sys
from gateway.stores.record import WorkerRecord
from gateway.stores.file.store import FileStore
store = FileStore(pathlib.Path(sys.argv[1]), write_timeout=60)
"""

#: Registers 12 workers, and removes every third again.
WRITER = """
async def write(name):
    for port in range(1, 13):
        record = WorkerRecord(f"http://{name}:{port}", labels={"filler": "x" * (17 * port % 200)})
        await store.put(record)
        if port % 3 == 0:
            await store.delete(record.url)
asyncio.run(write(sys.argv[2]))
"""

#: Kills the process between the write of the new file and its rename.
DIES_BEFORE_THE_RENAME = """
pathlib.Path.replace = lambda *names: os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(store.put(WorkerRecord("http://never:1")))
"""

#: Renews a record with a TTL of one second until it is killed.
RENEWER = """
async def keep():
    await store.put(WorkerRecord("http://kept:1"), ttl=1)
    await asyncio.Event().wait()
asyncio.run(keep())
"""


def process(code: str, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", IMPORTS + code, *arguments], cwd=ROOT)


def files_beside(path: Path) -> set[str]:
    return {file.name.removeprefix(path.name) for file in path.parent.iterdir()}


def urls(path: Path) -> set[str]:
    """Return the URLs in the file, which must be valid."""
    return set(Document(path.read_bytes()).records(datetime.now(UTC)))


def test_eight_writers_at_once_lose_nothing(path: Path) -> None:
    writers = [process(WRITER, str(path), f"w{number}") for number in range(8)]
    for writer in writers:
        assert writer.wait(50) == 0
    assert urls(path) == {f"http://w{n}:{port}" for n in range(8) for port in range(1, 13) if port % 3}


async def test_crash_before_the_rename_changes_nothing(path: Path, open_store: Open) -> None:
    """The next writer overwrites the file that is left behind."""
    store = open_store()
    await store.put(ONE)
    before = urls(path)
    with process(DIES_BEFORE_THE_RENAME, str(path)) as running:
        assert await asyncio.to_thread(running.wait, 30) == -signal.SIGKILL
    assert urls(path) == before
    assert files_beside(path) == {"", ".lock", ".tmp"}
    await store.put(TWO)
    assert urls(path) == {ONE.url, TWO.url}
    assert files_beside(path) == {"", ".lock"}


async def test_record_expires_while_its_process_is_stopped_or_killed(path: Path, open_store: Open) -> None:
    """A process that was stopped for longer than the TTL registers it again."""
    async with watching(open_store()) as watched:
        renewer = process(RENEWER, str(path))
        try:
            await watched.knows("http://kept:1")
            await asyncio.sleep(2)
            await watched.knows("http://kept:1")
            os.kill(renewer.pid, signal.SIGSTOP)
            await watched.knows()
            os.kill(renewer.pid, signal.SIGCONT)
            await watched.knows("http://kept:1")
        finally:
            renewer.kill()
            renewer.wait()
        await watched.knows()
