"""A second host, which can become unreachable: two network namespaces and a cable between them.

It needs Linux, root and ``ip``. Nothing of it is left when the file descriptors of the namespaces are closed.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

#: The address of this host, and two of the other one.
HERE, THERE, ALSO_THERE = "10.9.1.1", "10.9.1.2", "10.9.1.3"
_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)


class OtherHost:
    """The other host. A socket belongs for all its life to the host on which it was made."""

    def __init__(self, here: int, there: int) -> None:
        self._here = here
        self._there = there

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Have this thread make its sockets on the other host."""
        _enter(self._there)
        try:
            yield
        finally:
            _enter(self._here)

    def connect(self, port: int, receive_buffer: int | None = None) -> socket.socket:
        """Return a connection from the other host to a port of this one."""
        with self.inside():
            return connection(port, receive_buffer)

    def disconnect(self) -> None:
        """Pull the cable: no FIN and no RST arrives any more, in either direction."""
        with self.inside():
            _ip("link set there down")

    def reconnect(self) -> None:
        """Plug it in again."""
        with self.inside():
            _ip("link set there up")


def connection(port: int, receive_buffer: int | None = None) -> socket.socket:
    """Return a connection to a port of this host, with a buffer of so many bytes."""
    made = socket.socket()
    if receive_buffer is not None:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    made.connect((HERE, port))
    made.setblocking(False)
    return made


@contextmanager
def other_host() -> Iterator[OtherHost]:
    """Put this thread and the processes it starts on a host of its own, beside another one; skip the test
    where that is not possible.
    """
    before = _namespace()
    opened = [before]
    try:
        for _ in range(2):
            if _LIBC.unshare(_CLONE_NEWNET):
                pytest.skip(f"NOT TESTED, UNREACHABLE HOSTS NEED ROOT: {os.strerror(ctypes.get_errno())}")
            opened.append(_namespace())
            _ip("link set lo up")
        _, here, there = opened
        _ip(f"link add there type veth peer name here netns /proc/{os.getpid()}/fd/{here}")
        for address in (THERE, ALSO_THERE):
            _ip(f"addr add {address}/24 dev there")
        _ip("link set there up")
        _enter(here)
        _ip(f"addr add {HERE}/24 dev here")
        _ip("link set here up")
        yield OtherHost(here, there)
    finally:
        if len(opened) > 1:  # else it has not left, and may not be allowed to enter
            _enter(before)
        for each in opened:
            os.close(each)


def _namespace() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY)


def _enter(namespace: int) -> None:
    if _LIBC.setns(namespace, 0):
        raise OSError(ctypes.get_errno(), "the thread cannot change its network namespace")


def _ip(words: str) -> None:
    try:
        subprocess.run(["ip", *words.split()], check=True, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("NOT TESTED, UNREACHABLE HOSTS NEED THE COMMAND ip")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"NOT TESTED, ip {words}: {error.stderr.strip()}")
