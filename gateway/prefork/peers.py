"""A process's end of the channel: how the whole gateway is, and asking the other processes.

Owns: the channel in the event loop, open questions, the state the supervisor tells. Must never enter: what
questions are about, what ends a process.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gateway.prefork.frames import Frame, Frames, Verb

#: How long the supervisor, which bounds what it waits for, has beyond that before it counts as stuck, in
#: seconds.
SLACK = 1.0
#: Seconds for what was said last to leave.
_LAST_WORD = 1.0
#: Bytes unread by the supervisor beyond which it counts as stuck.
_MOST_UNREAD = 1 << 20

Reply = Callable[[bytes], None]
#: Answers the question with this body by calling ``reply`` once, now or later.
Answerer = Callable[[bytes, Reply], None]


class PeersUnavailable(Exception):
    """The supervisor is gone or stuck."""


@dataclass(frozen=True, slots=True)
class State:
    """The whole gateway. ``settled``: all its processes have served at the same time once. ``usable``: each
    that serves has a usable worker."""

    wanted: int = 1
    serving: int = 0
    settled: bool = False
    draining: bool = False
    restarts: int = 0
    usable: bool = False


@dataclass(frozen=True, slots=True)
class PeerReplies:
    """What the others answered, as they said it; ``missing`` of them did not."""

    bodies: list[Any]
    missing: int


class Peers(asyncio.Protocol):
    """One per process, on its event loop. ``again``: this process replaces one that died."""

    def __init__(self, channel: socket.socket, *, again: bool = False) -> None:
        self.again = again
        self.supervisor = os.getppid()
        self.process = os.getpid()
        self.state = State()
        #: Told to end at once.
        self.ended = False
        #: The supervisor is gone.
        self.lost = False
        #: Called when the gateway drains, be it that the supervisor says so or is gone.
        self.on_drain: Callable[[], None] = _nothing
        self._channel = channel
        self._frames = Frames()
        self._answerers: dict[Verb, Answerer] = {}
        self._asked = 0
        self._questions: dict[int, asyncio.Future[bytes]] = {}
        self._transport: asyncio.Transport | None = None
        self._over: asyncio.Future[None]

    def answer(self, verb: Verb, answerer: Answerer) -> None:
        """From now on, ``answerer`` answers what others ask with ``verb``."""
        self._answerers[verb] = answerer

    async def open(self) -> None:
        """Begin to listen to the supervisor."""
        loop = asyncio.get_running_loop()
        self._over = loop.create_future()
        await loop.create_unix_connection(lambda: self, sock=self._channel)

    async def close(self) -> None:
        """Let what was said leave, then hang up."""
        if self._transport is not None:
            self._transport.close()
            await asyncio.wait([self._over], timeout=_LAST_WORD)

    def tell(self, verb: Verb, body: bytes = b"null") -> None:
        """Say something about this process."""
        self._send(Frame(verb, 0, body))

    @property
    def stuck(self) -> bool:
        """The supervisor does not read what it is told."""
        return self._transport is not None and self._transport.get_write_buffer_size() > _MOST_UNREAD

    async def ask(self, verb: Verb, body: bytes = b"null", within: float = SLACK) -> PeerReplies:
        """What all others answer. ``within`` is in seconds. Raises Unanswered."""
        if self.lost or self.stuck:
            raise PeersUnavailable("the supervisor is gone or stuck")
        self._asked += 1
        number = self._asked
        future = self._questions[number] = asyncio.get_running_loop().create_future()
        self._send(Frame(verb, number, body))
        try:
            async with asyncio.timeout(within):
                said = json.loads(await future)
        except TimeoutError:
            raise PeersUnavailable(f"the supervisor has not answered within {within:g} s") from None
        finally:
            del self._questions[number]
        return PeerReplies(said["answers"], said["missing"])

    # -- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        for frame in self._frames.feed(data):
            self._heard(frame)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._transport = None
        if not self._over.done():
            self._over.set_result(None)
        for future in self._questions.values():
            if not future.done():
                future.set_exception(PeersUnavailable("the supervisor is gone"))
        self.on_drain()

    # -- internals

    def _heard(self, frame: Frame) -> None:
        match frame.verb:
            case Verb.STATE:
                self.state = State(**json.loads(frame.body))
                if self.state.draining:
                    self.on_drain()
            case Verb.END:
                self.ended = True
            case Verb.ANSWERS:
                future = self._questions.get(frame.number)
                if future is not None and not future.done():
                    future.set_result(frame.body)
            case _:
                self._answerers[frame.verb](
                    frame.body, lambda body: self._send(Frame(Verb.ANSWER, frame.number, body))
                )

    def _send(self, frame: Frame) -> None:
        if self._transport is not None:
            self._transport.write(frame.encode())


def _nothing() -> None:
    pass
