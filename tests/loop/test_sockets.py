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
    try:
        try:
            raise inner
        except BaseException as error:
            if hidden:
                raise RuntimeError("all attempts failed") from None
            raise RuntimeError("all attempts failed") from error
    except RuntimeError as outer:
        return outer


@pytest.mark.parametrize("hidden", [False, True])
def test_shortage_is_found_behind_the_error_of_a_library(hidden: bool) -> None:
    assert is_shortage(FULL)
    assert is_shortage(wrapped(wrapped(FULL, hidden=hidden), hidden=hidden))
    assert is_shortage(wrapped(ExceptionGroup("two addresses", [REFUSED, FULL]), hidden=hidden))


@pytest.mark.parametrize("error", [None, REFUSED, TimeoutError(), ExceptionGroup("one", [REFUSED])])
def test_failure_of_the_peer_is_not_a_shortage(error: BaseException | None) -> None:
    assert not is_shortage(error)
    if error is not None:
        assert not is_shortage(wrapped(error, hidden=False))


@pytest.mark.skipif(not hasattr(socket, "TCP_KEEPIDLE"), reason="this system has only SO_KEEPALIVE")
def test_keepalive_options_set_the_times_of_the_kernel() -> None:
    with socket.socket() as made:
        for option in tcp_keepalive_options(5, 2, 3):
            made.setsockopt(*option)
        names = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert [made.getsockopt(socket.IPPROTO_TCP, name) for name in names] == [5, 2, 3]
