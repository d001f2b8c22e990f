"""Time and a network that do nothing by themselves: a test takes each step, in the order it chooses."""

from __future__ import annotations

import asyncio
import selectors
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

from gateway.loop import tcp_info
from gateway.upstream.connection import Connection
from tests.support.socketless import Transport
from tests.support.virtual_time import OwnClockLoop

#: Longer than any timer of the product that a race can start, in seconds.
AGES = 60.0
#: States of the kernel's TCP: reset (TCP_CLOSE), and established.
_RESET, _UP = 7, 1


class SteppedLoop(OwnClockLoop):
    """An event loop whose time stands still until nothing is left to do; then the next timer is due.

    Its connections are made by ``dial``, which is given what makes the protocol and the port.
    """

    def __init__(self) -> None:
        self.dial: Callable[[Callable[[], Any], int], Awaitable[Any]]
        super().__init__(_Instant(self))

    async def create_connection(  # type: ignore[override]
        self, factory: Any, host: Any = None, port: Any = None, **more: Any
    ) -> Any:
        return await self.dial(factory, port)


class _Instant(selectors.SelectSelector):
    """Waits for no time. RuntimeError where there is nothing to wait for."""

    def __init__(self, loop: SteppedLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise RuntimeError("the loop waits for what never comes")
        self._loop.now += timeout
        return super().select(0)


class Wire(Transport):
    """Stands for the transport of ``protocol``, and is the peer's end of it as well."""

    def __init__(self, protocol: Any, wrote: Callable[[Wire, bytes], None] = lambda wire, data: None) -> None:
        self.protocol = protocol
        self.closed = False
        self.written = b""
        #: What was written although the connection was over.
        self.late = b""
        #: Whether the peer's TCP took what was sent.
        self.taken = True
        self._wrote = wrote
        protocol.connection_made(self)

    # What the protocol calls.

    def write(self, data: bytes) -> None:
        if self.closed:
            self.late += data
            return
        self.written += data
        self._wrote(self, data)

    def writelines(self, parts: Sequence[bytes]) -> None:
        self.write(b"".join(parts))

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "socket" else default

    # What it asks of the socket.

    family = socket.AF_UNIX

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        state, acknowledged = _UP if self.taken else _RESET, 1 + self.taken * len(self.written)
        return tcp_info._LAYOUT.pack(state, 0, 0, 0, 0, acknowledged)

    def setsockopt(self, *options: Any) -> None:
        pass

    # What the peer does.

    def feed(self, data: bytes) -> None:
        """Bytes of the peer."""
        if self.closed:
            return
        if isinstance(self.protocol, Connection):
            self.protocol.get_buffer(-1)[: len(data)] = data
            self.protocol.buffer_updated(len(data))
        else:
            self.protocol.data_received(data)

    def leave(self, *, reset: bool) -> None:
        """A FIN, or a RST."""
        if self.closed:
            return
        if reset:
            self.closed = True
            self.protocol.connection_lost(ConnectionResetError())
        elif not self.protocol.eof_received():
            self.close()


def interleavings(actors: Sequence[Sequence[str]]) -> Iterator[tuple[str, ...]]:
    """Every order of all events in which each actor's own come in their order."""
    actors = [actor for actor in actors if actor]
    if len(actors) <= 1:
        yield tuple(actors[0]) if actors else ()
        return
    first, rest = actors[0], actors[1:]
    for others in interleavings(rest):
        size = len(first) + len(others)
        for places in combinations(range(size), len(first)):
            mine, theirs = iter(first), iter(others)
            yield tuple(next(mine) if place in places else next(theirs) for place in range(size))


def pauses(events: int, *, single: bool) -> Iterator[frozenset[int]]:
    """After which events the gateway gets the time to do all it has to: each, none, any ``single`` one."""
    yield frozenset(range(events))
    yield frozenset()
    if single:
        yield from (frozenset({place}) for place in range(events))


async def settle() -> None:
    """Let the gateway do all that it can without anything happening, retransmissions of TCP included."""
    await asyncio.sleep(0.01)
