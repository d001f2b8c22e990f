"""Local shortages of sockets, and TCP keep-alive."""

from __future__ import annotations

import errno
import socket

import pytest

from gateway.loop.sockets import is_shortage, tcp_keepalive_options

FULL = OSError(errno.EMFILE, "too many open files")
REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "refused")


def wrapped(inner: BaseException, *, hidden: bool) -> BaseException:
    """Return ``inner`` as a library passes it on: as the cause, or ``hidden`` as the context only."""
    outer = RuntimeError("all attempts failed")
    outer.__context__ = inner
    outer.__cause__, outer.__suppress_context__ = None if hidden else inner, True
    return outer


@pytest.mark.parametrize("hidden", [False, True])
def test_shortage_is_found_behind_the_error_of_a_library_and_no_fault_of_the_peer(hidden: bool) -> None:
    both = ExceptionGroup("two addresses", [REFUSED, FULL])
    for error in (FULL, wrapped(wrapped(FULL, hidden=hidden), hidden=hidden), wrapped(both, hidden=hidden)):
        assert is_shortage(error)
    for fault in (REFUSED, TimeoutError(), ExceptionGroup("one", [REFUSED])):
        assert not is_shortage(fault) and not is_shortage(wrapped(fault, hidden=hidden))
    assert not is_shortage(None)


@pytest.mark.skipif(not hasattr(socket, "TCP_KEEPIDLE"), reason="this system has only SO_KEEPALIVE")
def test_keepalive_options_set_the_times_of_the_kernel() -> None:
    with socket.socket() as made:
        for option in tcp_keepalive_options(5, 2, 3):
            made.setsockopt(*option)
        names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert [made.getsockopt(socket.IPPROTO_TCP, name) for name in names] == [5, 2, 3]
