"""The process that starts the others, and is the last to go.

Owns: when they start and end, and when one that died or hangs is started again. Must never enter: requests,
an event loop, a thread.

Processes are forked, from this one, which has neither loop nor lock that a fork could tear: a new one
is there within milliseconds, shares most of its memory, has the settings without telling them to anybody who
lists processes, and runs the code its siblings run, whatever was installed since.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from gateway.prefork.fork import forked
from gateway.prefork.frames import Frame, Verb
from gateway.prefork.hub import Hub
from gateway.prefork.link import Link
from gateway.prefork.log_writer import LogWriter
from gateway.prefork.port import Port
from gateway.prefork.signals import STOPS, SignalPipe
from gateway.telemetry.snapshot import merge_final_counts

log = logging.getLogger(__name__)

#: A process that served for so many seconds did not die of its start.
STEADY = 10.0
#: Seconds before a process that died again is started again: the first time, doubled each time, and at most.
FIRST_DELAY, MOST_DELAY = 0.25, 10.0
_MOST_DOUBLED = 16
#: Seconds that processes have to end once they were told to; one that hangs is killed then.
LAST_GRACE = 10.0
#: Each process says something four times a second. One that was silent for so many seconds hangs: it is
#: killed, and who waits for it gets its successor. Once all have to end, less is enough.
HUNG, HUNG_AT_THE_END = 30.0, 3.0
#: Seconds between two looks at what they said. What it takes longer this process was stopped, or the whole
#: machine was: nobody could be heard then, and nobody is to blame.
LOOK_EVERY = 1.0
#: Seconds until log lines that could not be written are tried again.
_RETRY = 0.1

#: What a process does, given its listening socket, its end of the channel and whether it replaces one that
#: died; returns its exit code.
Serve = Callable[[socket.socket, socket.socket, bool], int]


@dataclass(slots=True, eq=False)
class _Place:
    """The place of one process among N.

    Its listening socket is kept while it is replaced at once, so that who waits to be accepted waits on.
    """

    listener: socket.socket | None = None
    pid: int = 0
    link: Link | None = None
    started_at: float = 0.0
    #: How long the supervisor had been awake when it said something last.
    heard_at: float = 0.0
    #: Deaths in a row, and when it is started again.
    deaths: int = 0
    due: float | None = None


class Supervisor:
    """Runs ``count`` processes that ``serve`` on ``port``. ``grace`` is in seconds.

    ``lines`` are where this process logs to.
    """

    def __init__(self, count: int, grace: float, port: Port, serve: Serve, lines: LogWriter) -> None:
        self._grace = grace
        self._port = port
        self._serve = serve
        self._lines = lines
        self._selector = selectors.DefaultSelector()
        self._hub = Hub(count, self._send, merge_final_counts)
        self._places = [_Place() for _ in range(count)]
        #: By process id, those that are alive.
        self._alive: dict[int, _Place] = {}
        #: When it last looked, and for how many seconds it was awake until then, as far as it can tell.
        self._looked_at = time.monotonic()
        self._awake = 0.0
        self._bell = SignalPipe(self._selector)
        #: When running exchanges are cut; None: not draining.
        self._deadline: float | None = None
        #: When what was told to end is killed; None: not told.
        self._kill_at: float | None = None
        self._code = 0

    def run(self) -> int:
        """Until all have ended; the exit code."""
        with self._bell.installed():
            for place in self._places:
                self._start(place, again=False)
            while self._alive or self._waiting():
                self._step()
        self._selector.close()
        self._port.close()
        return self._code

    # -- the loop

    def _step(self) -> None:
        drain = False
        for key, events in self._selector.select(self._timeout()):
            if key.data is None:
                drain = True
            else:
                self._talk(key.data, events)
        if drain:
            self._ring()  # last: it may close what else was ready
        now = time.monotonic()
        self._hub.expire(now)
        self._lines.flush()
        self._kill_the_hung(now)
        if self._deadline is None:
            for place in self._waiting():
                if place.due is not None and place.due <= now:
                    self._start(place, again=True)
        elif self._kill_at is None and (self._hub.idle or now >= self._deadline):
            self._end(now)
        elif self._kill_at is not None and now >= self._kill_at:
            self._kill()

    def _timeout(self) -> float | None:
        times = [self._hub.due, self._kill_at]
        if self._kill_at is None:
            times.append(self._deadline)
        times += [place.due for place in self._waiting()]
        if self._alive:
            times.append(self._looked_at + LOOK_EVERY)
        if self._lines:
            times.append(time.monotonic() + _RETRY)
        due = min((each for each in times if each is not None), default=None)
        return None if due is None else max(0.0, due - time.monotonic())

    def _kill_the_hung(self, now: float) -> None:
        self._awake += min(now - self._looked_at, LOOK_EVERY)
        self._looked_at = now
        patience = HUNG if self._kill_at is None else HUNG_AT_THE_END
        for pid, place in self._alive.items():
            if self._awake >= place.heard_at + patience:
                log.error("process %d has said nothing for %g s: killed", pid, patience)
                os.kill(pid, signal.SIGKILL)
                place.heard_at = self._awake

    def _waiting(self) -> list[_Place]:
        """The places of those that will be started again."""
        return [place for place in self._places if place.due is not None]

    # -- what processes say

    def _send(self, pid: int, frame: Frame) -> bool:
        link = self._alive[pid].link
        return link is not None and link.send(frame)

    def _talk(self, place: _Place, events: int) -> None:
        assert place.link is not None, "it is watched"
        if events & selectors.EVENT_WRITE:
            place.link.flush()
        if events & selectors.EVENT_READ:
            self._hear(place, place.link)

    def _hear(self, place: _Place, link: Link) -> None:
        now = time.monotonic()
        for frame in link.receive():
            place.heard_at = self._awake
            self._hub.heard(place.pid, frame, now)
            if frame.verb is Verb.SERVING:
                log.info("process %d serves", place.pid)

    # -- signals

    def _ring(self) -> None:
        for number in self._bell.drain():
            if number in STOPS:
                self._told_to_stop()
        self._bury_the_dead()

    def _told_to_stop(self) -> None:
        """Drain, the first time; then end at once."""
        now = time.monotonic()
        if self._deadline is not None:
            self._deadline = now
            return
        log.info("draining %d processes", len(self._alive))
        self._deadline = now + self._grace
        for place in self._waiting():
            place.due = None
        self._hub.drain()

    def _end(self, now: float) -> None:
        self._kill_at = now + LAST_GRACE
        self._hub.end()

    def _kill(self) -> None:
        for pid in self._alive:
            log.error("process %d does not end: killed", pid)
            os.kill(pid, signal.SIGKILL)
        self._kill_at = time.monotonic() + LAST_GRACE

    # -- the life of one process

    def _start(self, place: _Place, *, again: bool) -> None:
        place.due = None
        try:
            if place.listener is None:
                place.listener = self._port.listener()
            pid, channel = self._fork(place.listener, again)
        except OSError as error:
            log.error("no process could be started: %s", error)
            return self._put_off(place) if again else self._give_up(place, 1)
        place.pid, place.started_at = pid, time.monotonic()
        place.heard_at = self._awake
        place.link = Link(channel, self._selector, place)
        self._alive[pid] = place
        self._hub.joined(pid, again=again)

    def _fork(self, listener: socket.socket, again: bool) -> tuple[int, socket.socket]:
        """The new process and the channel to it."""

        def live(channel: socket.socket) -> int:
            self._leave_behind(listener)
            return self._serve(listener, channel, again)

        return forked(live, self._lines)

    def _leave_behind(self, listener: socket.socket) -> None:
        """In a new process: close what is the supervisor's and the siblings', whose ends must be theirs
        alone."""
        self._selector.close()
        self._bell.close()
        self._port.close()
        for place in self._places:
            if place.link is not None:
                place.link.close()
            if place.listener is not None and place.listener is not listener:
                place.listener.close()

    def _bury_the_dead(self) -> None:
        for pid, place in tuple(self._alive.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self._bury(place, os.waitstatus_to_exitcode(status))

    def _bury(self, place: _Place, code: int) -> None:
        """``code`` is its exit code, or less than 0: minus the signal that killed it."""
        assert place.link is not None, "it was alive"
        self._hear(place, place.link)  # what it said last counts
        place.link.leave()
        place.link = None
        del self._alive[place.pid]
        self._hub.left(place.pid)
        if self._kill_at is not None:
            return self._close(place)
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        if self._deadline is not None:
            log.error("process %d ended %s while it drained", place.pid, how)
            self._close(place)
        elif not self._hub.settled:
            log.error("process %d ended %s before all served: giving up", place.pid, how)
            self._give_up(place, code)
        else:
            log.error("process %d ended %s", place.pid, how)
            self._replace(place)

    def _give_up(self, place: _Place, code: int) -> None:
        """End all: one that cannot start the first time will not the next time either."""
        self._close(place)
        self._code = max(1, code)
        self._deadline = time.monotonic()
        self._hub.drain()

    def _replace(self, place: _Place) -> None:
        now = time.monotonic()
        if now - place.started_at >= STEADY:
            place.deaths = 0
        if place.deaths:
            self._put_off(place)
        else:
            place.deaths = 1
            self._start(place, again=True)

    def _put_off(self, place: _Place) -> None:
        """Start it later. Meanwhile nothing must wait for it: new connections go to the others."""
        self._close(place)
        delay = min(MOST_DELAY, FIRST_DELAY * 2.0 ** (place.deaths - 1))
        place.deaths = min(place.deaths + 1, _MOST_DOUBLED)
        log.info("a process is started again in %g s", delay)
        place.due = time.monotonic() + delay

    def _close(self, place: _Place) -> None:
        if place.listener is not None:
            place.listener.close()
            place.listener = None
