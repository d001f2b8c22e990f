"""The supervisor: the process that starts the gateway processes and exits last.

Owns: when processes are started, ended, killed and restarted. Must never enter: requests, an event loop, a
thread.

The gateway processes are forked from the supervisor, which has neither an event loop nor a lock that a fork
could leave in a broken state. A forked process is ready within milliseconds, shares most of its memory with
the supervisor, has the settings without passing secrets on a command line, and runs the same code as its
peers, whatever was installed since.
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

from gateway.prefork.fork import fork_process
from gateway.prefork.frames import Frame, Verb
from gateway.prefork.hub import Hub
from gateway.prefork.log_writer import LogWriter
from gateway.prefork.port import Port
from gateway.prefork.process_channel import ProcessChannel
from gateway.prefork.signals import STOP_SIGNALS, SignalPipe
from gateway.telemetry.snapshot import merge_final_counts

log = logging.getLogger(__name__)

#: Seconds of service after which an exit no longer counts as a failed start.
STABLE_AFTER = 10.0
#: Seconds before a process that exited repeatedly is restarted: the first delay, doubled each time, and the
#: longest.
MIN_RESTART_DELAY, MAX_RESTART_DELAY = 0.25, 10.0
_MAX_COUNTED_EXITS = 16
#: Seconds between the request to end and SIGKILL.
END_TIMEOUT = 10.0
#: Seconds without a frame after which a process is killed. A process that works sends one four times a second
#: (its counts). The second value applies once all processes were asked to end.
HANG_TIMEOUT, HANG_TIMEOUT_AT_END = 30.0, 3.0
#: The longest time between two iterations of the loop, in seconds. If an iteration takes longer, the
#: supervisor or the machine was stopped meanwhile: frames could not arrive, so that time does not count.
POLL_INTERVAL = 1.0
#: Seconds until log lines that could not be written are tried again.
_LOG_RETRY = 0.1

#: What a gateway process runs, given its listening socket, its end of the channel, its number (from 0) and
#: whether it replaces a process that exited; returns its exit code.
Serve = Callable[[socket.socket, socket.socket, int, bool], int]


@dataclass(slots=True, eq=False)
class _Slot:
    """A place for one of the N processes, which keeps its state across restarts.

    The listening socket is kept during an immediate restart, so that connections in its backlog are not lost.
    """

    listener: socket.socket | None = None
    pid: int = 0
    channel: ProcessChannel | None = None
    started_at: float = 0.0
    #: The value of ``Supervisor._awake`` when the last frame arrived.
    last_frame_at: float = 0.0
    #: Exits in a row.
    exits: int = 0
    #: When the process is restarted (monotonic time); None: no restart is pending.
    restart_at: float | None = None


class Supervisor:
    """A supervisor of ``count`` processes that ``serve`` on ``port``.

    ``grace`` is how long running exchanges may go on after a stop signal, in seconds. ``log_writer`` writes
    this process's log lines.
    """

    def __init__(self, count: int, grace: float, port: Port, serve: Serve, log_writer: LogWriter) -> None:
        self._grace = grace
        self._port = port
        self._serve = serve
        self._log_writer = log_writer
        self._selector = selectors.DefaultSelector()
        self._hub = Hub(count, self._send, merge_final_counts)
        self._slots = [_Slot() for _ in range(count)]
        #: Slots of the processes that run, by process id.
        self._running: dict[int, _Slot] = {}
        #: Monotonic time of the last iteration.
        self._polled_at = time.monotonic()
        #: Seconds this process has run, without suspensions.
        self._awake = 0.0
        self._signals = SignalPipe(self._selector)
        #: When running exchanges are cut; None: not draining.
        self._deadline: float | None = None
        #: When processes that were asked to end are killed; None: they were not asked.
        self._kill_at: float | None = None
        self._exit_code = 0

    def run(self) -> int:
        """Start all processes and return the exit code when all have ended."""
        with self._signals.installed():
            for slot in self._slots:
                self._start(slot, replacement=False)
            while self._running or self._pending_restarts():
                self._step()
        self._selector.close()
        self._port.close()
        return self._exit_code

    # -- the loop

    def _step(self) -> None:
        signalled = False
        for key, events in self._selector.select(self._timeout()):
            if key.data is None:
                signalled = True
            else:
                self._on_channel_ready(key.data, events)
        if signalled:
            self._handle_signals()  # last, as it can close a channel that was ready as well
        now = time.monotonic()
        self._hub.expire(now)
        self._log_writer.flush()
        self._kill_unresponsive(now)
        if self._deadline is None:
            for slot in self._pending_restarts():
                if slot.restart_at is not None and slot.restart_at <= now:
                    self._start(slot, replacement=True)
        elif self._kill_at is None and (self._hub.idle or now >= self._deadline):
            self._kill_at = now + END_TIMEOUT
            self._hub.end()
        elif self._kill_at is not None and now >= self._kill_at:
            for pid in self._running:
                log.error("process %d does not end: killed", pid)
                os.kill(pid, signal.SIGKILL)
            self._kill_at = time.monotonic() + END_TIMEOUT

    def _timeout(self) -> float | None:
        times = [self._hub.next_deadline, self._kill_at]
        if self._kill_at is None:
            times.append(self._deadline)
        times += [slot.restart_at for slot in self._pending_restarts()]
        if self._running:
            times.append(self._polled_at + POLL_INTERVAL)
        if self._log_writer:
            times.append(time.monotonic() + _LOG_RETRY)
        first = min((each for each in times if each is not None), default=None)
        return None if first is None else max(0.0, first - time.monotonic())

    def _kill_unresponsive(self, now: float) -> None:
        self._awake += min(now - self._polled_at, POLL_INTERVAL)
        self._polled_at = now
        timeout = HANG_TIMEOUT if self._kill_at is None else HANG_TIMEOUT_AT_END
        for pid, slot in self._running.items():
            if self._awake >= slot.last_frame_at + timeout:
                log.error("process %d has not responded for %g s: killed", pid, timeout)
                os.kill(pid, signal.SIGKILL)
                slot.last_frame_at = self._awake

    def _pending_restarts(self) -> list[_Slot]:
        return [slot for slot in self._slots if slot.restart_at is not None]

    # -- frames of the processes

    def _send(self, pid: int, frame: Frame) -> bool:
        channel = self._running[pid].channel
        return channel is not None and channel.send(frame)

    def _on_channel_ready(self, slot: _Slot, events: int) -> None:
        assert slot.channel is not None, "the selector watches it"
        if events & selectors.EVENT_WRITE:
            slot.channel.flush()
        if events & selectors.EVENT_READ:
            self._receive(slot, slot.channel)

    def _receive(self, slot: _Slot, channel: ProcessChannel) -> None:
        now = time.monotonic()
        for frame in channel.receive():
            slot.last_frame_at = self._awake
            self._hub.on_frame(slot.pid, frame, now)
            if frame.verb is Verb.SERVING:
                log.info("process %d serves", slot.pid)

    # -- signals

    def _handle_signals(self) -> None:
        for number in self._signals.drain():
            if number in STOP_SIGNALS:
                self._stop()
        for pid, slot in tuple(self._running.items()):
            exited, status = os.waitpid(pid, os.WNOHANG)
            if exited:
                self._on_exit(slot, os.waitstatus_to_exitcode(status))

    def _stop(self) -> None:
        """Drain on the first stop signal; end at once on the second."""
        now = time.monotonic()
        if self._deadline is not None:
            self._deadline = now
            return
        log.info("draining %d processes", len(self._running))
        self._deadline = now + self._grace
        for slot in self._pending_restarts():
            slot.restart_at = None
        self._hub.drain()

    # -- the life of one process

    def _start(self, slot: _Slot, *, replacement: bool) -> None:
        slot.restart_at = None
        try:
            if slot.listener is None:
                slot.listener = self._port.listener()
            pid, channel = self._fork(slot.listener, self._slots.index(slot), replacement)
        except OSError as error:
            log.error("no process could be started: %s", error)
            return self._restart_later(slot) if replacement else self._give_up(slot, 1)
        slot.pid, slot.started_at = pid, time.monotonic()
        slot.last_frame_at = self._awake
        slot.channel = ProcessChannel(channel, self._selector, slot)
        self._running[pid] = slot
        self._hub.process_started(pid, replacement=replacement)

    def _fork(self, listener: socket.socket, number: int, replacement: bool) -> tuple[int, socket.socket]:
        """Return the id of the new process and this end of its channel. Raises OSError."""

        def live(channel: socket.socket) -> int:
            self._close_inherited(listener)
            return self._serve(listener, channel, number, replacement)

        return fork_process(live, self._log_writer)

    def _close_inherited(self, listener: socket.socket) -> None:
        """Close, in a new process, the sockets of the supervisor and of its peers.

        Otherwise their other ends would not see end of file when their owner exits.
        """
        self._selector.close()
        self._signals.close()
        self._port.close()
        for slot in self._slots:
            if slot.channel is not None:
                slot.channel.close()
            if slot.listener is not None and slot.listener is not listener:
                slot.listener.close()

    def _on_exit(self, slot: _Slot, code: int) -> None:
        """Handle the exit of a process. ``code`` is its exit code, or minus the signal that killed it."""
        assert slot.channel is not None, "the process was running"
        self._receive(slot, slot.channel)  # its final counts may not have been read yet
        slot.channel.end()
        slot.channel = None
        del self._running[slot.pid]
        self._hub.process_ended(slot.pid)
        if self._kill_at is not None:
            return self._close_listener(slot)
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        if self._deadline is not None:
            log.error("process %d ended %s while it drained", slot.pid, how)
            self._close_listener(slot)
        elif not self._hub.settled:
            log.error("process %d ended %s before all served: giving up", slot.pid, how)
            self._give_up(slot, code)
        else:
            log.error("process %d ended %s", slot.pid, how)
            self._replace(slot)

    def _give_up(self, slot: _Slot, code: int) -> None:
        """End all processes: a process that cannot start the first time cannot start later either."""
        self._close_listener(slot)
        self._exit_code = max(1, code)
        self._deadline = time.monotonic()
        self._hub.drain()

    def _replace(self, slot: _Slot) -> None:
        """Restart a process: at once after its first exit, later and later after each further one."""
        if time.monotonic() - slot.started_at >= STABLE_AFTER:
            slot.exits = 0
        if slot.exits:
            self._restart_later(slot)
        else:
            slot.exits = 1
            self._start(slot, replacement=True)

    def _restart_later(self, slot: _Slot) -> None:
        self._close_listener(slot)  # new connections go to the other processes meanwhile
        delay = min(MAX_RESTART_DELAY, MIN_RESTART_DELAY * 2.0 ** (slot.exits - 1))
        slot.exits = min(slot.exits + 1, _MAX_COUNTED_EXITS)
        log.info("a process is restarted in %g s", delay)
        slot.restart_at = time.monotonic() + delay

    def _close_listener(self, slot: _Slot) -> None:
        if slot.listener is not None:
            slot.listener.close()
            slot.listener = None
