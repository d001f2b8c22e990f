"""A simulated engine as a process of its own.

Owns: the event loop, signals, the line that reports the URL. Must never enter: an engine's behaviour.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys

from gateway.loop.tasks import Tasks
from gateway.sim.config import SimConfig
from gateway.sim.server import SimServer

try:
    import uvloop
except ImportError:  # not on Windows
    uvloop = None  # type: ignore[assignment]


async def run(kind: str, config: SimConfig) -> int:
    """Serve until the engine ends and return its exit code. SIGTERM does what it does to the engine, SIGINT
    ends at once.
    """
    server = SimServer(kind, config)
    await server.start()
    loop = asyncio.get_running_loop()
    interrupted = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, server.terminate)
    loop.add_signal_handler(signal.SIGINT, interrupted.set)
    sys.stdout.write(f"listening on {server.url}\n")
    sys.stdout.flush()
    gc.freeze()
    tasks = Tasks()
    ends = [tasks.spawn(server.exited(), "exit"), tasks.spawn(interrupted.wait(), "interrupt")]
    try:
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await tasks.stop()
        await server.stop()
    return server.exit_code or 0


def main(kind: str, config: SimConfig) -> int:
    """Run a simulated engine in this process and block until it ends. Raises OSError if it cannot listen."""
    factory = uvloop.new_event_loop if uvloop is not None else None
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(run(kind, config))
