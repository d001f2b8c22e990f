"""A process's end of the channel to the supervisor, and through it to the other processes (its peers).

Owns: the channel in the event loop, the open queries, the state that the supervisor reports. Must never
enter: what queries are about, when a process ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gateway.prefork.frames import Frame, FrameParser, Verb
from gateway.prefork.id_table import ProcessIds

#: Seconds that the supervisor has for an answer beyond the time for which it waits for the other processes.
SLACK = 1.0
#: Seconds that the final frames have to leave this process.
_FLUSH_TIMEOUT = 1.0
#: Bytes not yet read by the supervisor above which it counts as stuck.
_MAX_UNREAD = 1 << 20

Reply = Callable[[bytes], None]
#: Answers a query with this body by calling ``reply`` once, at once or later.
Answerer = Callable[[bytes, Reply], None]


class PeersUnavailable(Exception):
    """The supervisor has exited or does not respond, so the other processes cannot be asked."""


@dataclass(frozen=True, slots=True)
class GatewayState:
    """The state of all processes together.

    ``settled``: all processes have served at the same time at least once. ``usable``: each process that
    serves has a usable worker.
    """

    wanted: int = 1
    serving: int = 0
    settled: bool = False
    draining: bool = False
    restarts: int = 0
    usable: bool = False


@dataclass(frozen=True, slots=True)
class PeerAnswers:
    """The answers of the other processes; ``missing`` of them did not answer."""

    bodies: list[Any]
    missing: int


class Peers(asyncio.Protocol):
    """The other processes, as this one sees them.

    ``ids`` are the clients' ids that they have in flight. ``first``: this process does what one of them does
    for all. ``replacement``: this process replaces one that exited.
    """

    def __init__(
        self, channel: socket.socket, ids: ProcessIds, *, first: bool = False, replacement: bool = False
    ) -> None:
        self.ids = ids
        self.first = first
        self.replacement = replacement
        self.supervisor = os.getppid()
        self.process = os.getpid()
        self.state = GatewayState()
        #: The supervisor has asked this process to end at once.
        self.end_requested = False
        #: The supervisor has exited.
        self.supervisor_lost = False
        self._drain: Callable[[], None] | None = None
        self._channel = channel
        self._parser = FrameParser()
        self._answerers: dict[Verb, Answerer] = {}
        self._last_number = 0
        self._queries: dict[int, asyncio.Future[bytes]] = {}
        self._transport: asyncio.Transport | None = None
        self._closed: asyncio.Future[None]

    def on_query(self, verb: Verb, answerer: Answerer) -> None:
        """Answer the queries with ``verb`` by ``answerer`` from now on."""
        self._answerers[verb] = answerer

    def on_drain(self, drain: Callable[[], None]) -> None:
        """Call ``drain`` when the gateway drains: the supervisor says so, or has exited."""
        self._drain = drain

    async def open(self) -> None:
        """Begin to read from the supervisor."""
        loop = asyncio.get_running_loop()
        self._closed = loop.create_future()
        await loop.create_unix_connection(lambda: self, sock=self._channel)

    async def close(self) -> None:
        """Send what was written, then close the channel."""
        if self._transport is not None:
            self._transport.close()
            await asyncio.wait([self._closed], timeout=_FLUSH_TIMEOUT)

    def report(self, verb: Verb, body: bytes = b"null") -> None:
        """Send the supervisor a fact about this process, or all peers a query whose answers are not used."""
        self._send(Frame(verb, 0, body))

    @property
    def supervisor_stuck(self) -> bool:
        """True if the supervisor does not read what is sent to it."""
        return self._transport is not None and self._transport.get_write_buffer_size() > _MAX_UNREAD

    async def ask(self, verb: Verb, body: bytes = b"null", within: float = SLACK) -> PeerAnswers:
        """Return the answers of all other processes, within ``within`` seconds. Raises PeersUnavailable."""
        if self.supervisor_lost or self.supervisor_stuck:
            raise PeersUnavailable("the supervisor has exited or does not respond")
        self._last_number += 1
        number = self._last_number
        future = self._queries[number] = asyncio.get_running_loop().create_future()
        self._send(Frame(verb, number, body))
        try:
            async with asyncio.timeout(within):
                answers = json.loads(await future)
        except TimeoutError:
            raise PeersUnavailable(f"the supervisor has not answered within {within:g} s") from None
        finally:
            del self._queries[number]
        return PeerAnswers(answers["answers"], answers["missing"])

    # -- called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        for frame in self._parser.feed(data):
            self._on_frame(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self.supervisor_lost = True
        self._transport = None
        if not self._closed.done():
            self._closed.set_result(None)
        for future in self._queries.values():
            if not future.done():
                future.set_exception(PeersUnavailable("the supervisor has exited"))
        if self._drain is not None:
            self._drain()

    # -- internals

    def _on_frame(self, frame: Frame) -> None:
        match frame.verb:
            case Verb.STATE:
                self.state = GatewayState(**json.loads(frame.body))
                if self.state.draining and self._drain is not None:
                    self._drain()
            case Verb.END:
                self.end_requested = True
            case Verb.ANSWERS:
                future = self._queries.get(frame.number)
                if future is not None and not future.done():
                    future.set_result(frame.body)
            case _:
                self._answerers[frame.verb](
                    frame.body, lambda body: self._send(Frame(Verb.ANSWER, frame.number, body))
                )

    def _send(self, frame: Frame) -> None:
        if self._transport is not None:
            self._transport.write(frame.encode())
