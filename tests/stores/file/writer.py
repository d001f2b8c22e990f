"""A process that writes to a file of workers: PATH NAME COUNT.

It registers COUNT workers, removes every third again, and prints each write that is done: ``+URL``, ``-URL``.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from gateway.stores.file.store import FileStore
from gateway.stores.record import WorkerRecord


async def write(path: Path, name: str, count: int) -> None:
    store = FileStore(path, write_timeout=60)
    for number in range(count):
        url = f"http://{name}:{number + 1}"
        await store.put(WorkerRecord(url, labels={"filler": "x" * (17 * number % 200)}))
        print(f"+{url}", flush=True)
        if number % 3 == 2:
            await store.delete(url)
            print(f"-{url}", flush=True)
    await store.close()


if __name__ == "__main__":
    asyncio.run(write(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
