"""The states of a worker, their transitions, and the sources of cordons.

Owns: the names and the one transition table. Must never enter: how an event is found out, I/O, a clock.
Fleet.apply_event is the only caller: nothing else changes a worker's state.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class WorkerState(StrEnum):
    JOINING = "joining"  # not found able to serve yet; ``Worker.reason`` says what is missing
    READY = "ready"
    BUSY = "busy"  # reported that it takes no more at the moment; leased if no worker is ready
    SUSPECT = "suspect"  # a reply or a probe failed, and it is being probed again; leased last
    CORDONED = "held"  # could serve, but gets no new requests until it is uncordoned
    DEAD = "dead"  # refused a connection, or failed its probes
    DRAINING = "draining"  # finishes what runs on it and gets no new requests
    GONE = "gone"  # not a member any more


class WorkerEvent(StrEnum):
    """What happens to a worker. SERVES never uncordons one: only UNCORDON does."""

    SERVES = "serves"  # a good probe or a complete reply
    CANNOT = "cannot"  # it answers, but not as a worker that can serve
    FULL = "full"  # it answered 429 or 503, or reports that it takes no requests now
    DOUBT = "doubt"  # a probe failed, or a reply was broken
    DIE = "die"  # refused a connection, or failed its probes
    CORDON = "cordon"  # it could serve, and somebody cordoned it
    UNCORDON = "uncordon"  # the last cordon ended
    JOIN = "join"  # it was registered again
    DRAIN = "drain"  # it was removed
    LEAVE = "leave"  # it was removed, and nothing runs on it


class CordonSource(StrEnum):
    """Who cordoned a worker. A worker may have several cordons; each is ended separately."""

    OWNER = "owner"  # it was registered cordoned, or cordoned over the API
    WEIGHTS = "weights"  # its weight version is below --min-weight-version
    PAUSED = "paused"  # it was paused through the gateway


_STATE = WorkerState
_SERVING = {
    WorkerEvent.CANNOT: _STATE.JOINING,
    WorkerEvent.DIE: _STATE.DEAD,
    WorkerEvent.CORDON: _STATE.CORDONED,
    WorkerEvent.DRAIN: _STATE.DRAINING,
}
_AWAY = {
    WorkerEvent.SERVES: _STATE.READY,
    WorkerEvent.FULL: _STATE.BUSY,
    WorkerEvent.CORDON: _STATE.CORDONED,
    WorkerEvent.DRAIN: _STATE.DRAINING,
}

#: state -> event -> next state; an absent event changes nothing. None of them is illegal: probes, replies and
#: calls of the API come in any order.
TRANSITIONS: Mapping[WorkerState, Mapping[WorkerEvent, WorkerState]] = MappingProxyType(
    {
        _STATE.JOINING: _AWAY,
        _STATE.READY: {**_SERVING, WorkerEvent.FULL: _STATE.BUSY, WorkerEvent.DOUBT: _STATE.SUSPECT},
        _STATE.BUSY: {**_SERVING, WorkerEvent.SERVES: _STATE.READY, WorkerEvent.DOUBT: _STATE.SUSPECT},
        _STATE.SUSPECT: {**_SERVING, WorkerEvent.SERVES: _STATE.READY, WorkerEvent.FULL: _STATE.BUSY},
        _STATE.CORDONED: {
            WorkerEvent.UNCORDON: _STATE.READY,
            WorkerEvent.CANNOT: _STATE.JOINING,
            WorkerEvent.DIE: _STATE.DEAD,
            WorkerEvent.DRAIN: _STATE.DRAINING,
        },
        _STATE.DEAD: {**_AWAY, WorkerEvent.CANNOT: _STATE.JOINING, WorkerEvent.JOIN: _STATE.JOINING},
        _STATE.DRAINING: {WorkerEvent.JOIN: _STATE.JOINING, WorkerEvent.LEAVE: _STATE.GONE},
        _STATE.GONE: {},
    }
)

#: The states of workers that may be leased, the preferred one first.
USABLE = (_STATE.READY, _STATE.BUSY, _STATE.SUSPECT)

#: Events whose reason replaces the one before although the state stays.
REASON_UPDATES: Mapping[WorkerState, frozenset[WorkerEvent]] = MappingProxyType(
    {
        _STATE.JOINING: frozenset({WorkerEvent.CANNOT, WorkerEvent.DOUBT, WorkerEvent.DIE}),
        _STATE.READY: frozenset({WorkerEvent.SERVES}),
        _STATE.BUSY: frozenset({WorkerEvent.FULL}),
        _STATE.SUSPECT: frozenset({WorkerEvent.DOUBT}),
        _STATE.CORDONED: frozenset({WorkerEvent.CORDON}),
    }
)
