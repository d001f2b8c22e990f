"""Telling who follows: everything, in order, within bounds, and to nobody else."""

from __future__ import annotations

import pytest

from gateway.fleet.changes import BACKLOG, Change, ChangeKind, Changes, Followers, forget
from gateway.fleet.worker import Worker
from gateway.upstream.address import Address

WORKER = Worker(Address.parse("http://a:1"))


def taken(changes: Changes) -> list[Change | None]:
    """All that waits."""
    return [changes.get_nowait() for _ in range(changes.qsize())]


def test_follower_that_stopped_gets_nothing_and_is_not_referenced() -> None:
    followers = Followers()
    with pytest.raises(ZeroDivisionError), followers.follow() as changes:
        raise ZeroDivisionError
    followers.notify(ChangeKind.JOINED, WORKER)
    assert changes.empty()
    assert len(followers) == 0


def test_full_backlog_is_replaced_by_none() -> None:
    followers = Followers()
    with followers.follow() as slow, followers.follow() as swift:
        for _ in range(BACKLOG):
            followers.notify(ChangeKind.STATE, WORKER)
        assert len(taken(swift)) == BACKLOG
        followers.notify(ChangeKind.LEFT, WORKER)
        followers.notify(ChangeKind.JOINED, WORKER)
        mark, *after = taken(slow)
        assert mark is None
        assert [change.kind for change in after if change] == [ChangeKind.JOINED]
        assert [change.kind for change in taken(swift) if change] == [ChangeKind.LEFT, ChangeKind.JOINED]
        for _ in range(3 * BACKLOG):
            followers.notify(ChangeKind.STATE, WORKER)
            assert slow.qsize() <= BACKLOG
        forget(slow)
        assert slow.empty()
