"""The ASGI lifespan protocol.

Owns: the messages of start-up and shutdown. Must never enter: what is started.
"""

from __future__ import annotations

from typing import Protocol

from gateway.downstream.asgi import Receive, Send


class Background(Protocol):
    """The services that run beside the exchanges, from start-up to shutdown."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...


async def lifespan(receive: Receive, send: Send, background: Background) -> None:
    """Start and stop ``background`` when the server asks for it; return once it is stopped."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await background.start()
            await send({"type": "lifespan.startup.complete"})
        else:
            await background.stop()
            return await send({"type": "lifespan.shutdown.complete"})
