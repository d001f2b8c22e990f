"""A gateway in a process of its own that measures the CPU time of its longest event-loop iteration.

``python -m tests.performance.ticking FILE serve ...``: the longest turn since FILE was removed last, in
seconds, is written into FILE as it grows. CPU time and not the clock's, as what other processes take of a
busy machine is not the gateway's doing.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from gateway.commands import main as cli
from gateway.wiring import app
from gateway.wiring.background import Background
from tests.support.gateway import eventually, until
from tests.support.processes import free_port, spawned

_EVERY = 0.001


class Ticker:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._longest = 0.0
        self._last = time.thread_time()

    def tick(self) -> None:
        now = time.thread_time()
        turn, self._last = now - self._last, now
        if not self._file.exists():
            self._longest = turn = 0.0
            self._file.write_text("0")
        if turn > self._longest:
            self._longest = turn
            self._file.write_text(f"{turn:.6f}")
        asyncio.get_running_loop().call_later(_EVERY, self.tick)


@dataclass
class Ticking:
    """The process; ``longest`` since ``forget``."""

    port: int
    file: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def forget(self) -> None:
        self.file.unlink(missing_ok=True)
        await until(self.file.exists)

    @property
    def longest(self) -> float:
        return float(self.file.read_text() or 0)


@asynccontextmanager
async def ticking(folder: Path, *arguments: str) -> AsyncIterator[Ticking]:
    port, file = free_port(), folder / "longest"
    command = ("tests.performance.ticking", str(file), "serve", "--host", "127.0.0.1", "--port", str(port))
    async with spawned(*command, *arguments) as process:

        async def up() -> bool:
            assert process.returncode is None, (await process.communicate())[1].decode()
            return file.exists()

        await eventually(up, 30)
        yield Ticking(port, file)


def main() -> None:
    file = Path(sys.argv.pop(1))

    class Ticked(Background):
        async def start(self) -> None:
            await super().start()
            Ticker(file).tick()

    setattr(app, "Background", Ticked)  # noqa: B010 - a plain assignment to a class is an error of types
    cli.main()


if __name__ == "__main__":
    main()
