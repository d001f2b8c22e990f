"""The rule of promise P10, as a table over what the kernel reports. (Real kernels: test_connection.py)"""

from __future__ import annotations

import asyncio
import time

import pytest

from gateway.loop.tcp_info import TcpInfo, tcp_info
from gateway.upstream import receipt_proof
from gateway.upstream.receipt_proof import REFUSAL_WAIT, ReceiptProof
from tests.fuzz.wire import Wire

#: The SYN, and 100 bytes of earlier requests.
EARLIER = 101


def proof(
    patch: pytest.MonkeyPatch, info: TcpInfo | None, *, answered: bool = False, peer_closed: bool = True
) -> ReceiptProof:
    """Return what a connection knows in its second request while the kernel reports ``info``."""
    patch.setattr(receipt_proof, "tcp_info", lambda transport: info)
    found = ReceiptProof(asyncio.Transport())
    found.request_bytes = 100
    found.answered = found.peer_closed = True
    found.next_request()
    assert (found.answered, found.peer_closed) == (False, False)
    found.request_bytes = 50
    found.answered, found.peer_closed = answered, peer_closed
    return found


@pytest.mark.parametrize(
    ("info", "answered", "peer_closed", "not_received", "may_be_received"),
    [
        (TcpInfo(True, EARLIER), False, True, True, False),
        (TcpInfo(True, EARLIER), False, False, False, False),
        (TcpInfo(True, EARLIER), True, True, False, True),
        (TcpInfo(True, EARLIER + 1), False, True, False, True),
        (TcpInfo(False, EARLIER), False, True, False, False),
        (None, False, True, False, True),
    ],
    ids=["refused", "reset-alone", "answered", "acknowledged", "not-yet-refused", "unknown"],
)
def test_request_was_not_received_only_if_all_three_facts_are_known(
    info: TcpInfo | None,
    answered: bool,
    peer_closed: bool,
    not_received: bool,
    may_be_received: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = proof(monkeypatch, info, answered=answered, peer_closed=peer_closed)
    assert (found.not_received(), found.may_be_received()) == (not_received, may_be_received)
    assert found.can_be_decided() is (not answered and info is not None)


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("info", "waits"),
    [(TcpInfo(False, EARLIER), True), (TcpInfo(True, EARLIER), False), (TcpInfo(False, EARLIER + 1), False)],
)
async def test_wait_for_a_decision_is_bounded(
    info: TcpInfo, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = time.monotonic()
    await proof(monkeypatch, info).decided()
    assert time.monotonic() - started == pytest.approx(REFUSAL_WAIT if waits else 0, abs=0.01)


def test_nothing_is_known_of_a_request_over_tls() -> None:
    """The kernel counts encrypted bytes."""
    assert tcp_info(Wire(plain=False)) is None
