"""The load of an SGLang server.

Owns: the probes for it, the meaning of their replies, the conversion of one reply into the shape of the other
(SGLang 0.5.22 and releases with /get_load). Must never enter: sending the probes, a policy.

No reply shows that the next request would be refused, as none has the limit of the queue: only a 429 or 503
does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import msgspec

from gateway.formats.optional import LoadAlternative, WorkerHealth, WorkerLoad, health_by_status
from gateway.formats.worker_contract import ProbeReply, ProbeRequest

#: Cheap, as the server reads it from shared memory; sections other than ``core`` are not needed.
LOADS = ProbeRequest("GET", "/v1/loads?include=core")
#: The route of older releases.
GET_LOAD = ProbeRequest("GET", "/get_load")
REQUESTS = (LOADS, GET_LOAD)


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Rank(msgspec.Struct):
    num_running_reqs: _Count
    num_waiting_reqs: _Count
    token_usage: float | None = None


class _Loads(msgspec.Struct):
    loads: list[_Rank]


class _FullRank(_Rank):
    dp_rank: int = 0
    num_total_tokens: int | None = None
    num_used_tokens: int | None = None


class _FullLoads(msgspec.Struct):
    loads: list[_FullRank]


class _OldRank(msgspec.Struct):
    """A rank in a reply to /get_load. ``num_reqs`` includes the requests that wait."""

    num_reqs: _Count
    num_waiting_reqs: _Count
    dp_rank: int = 0


_full_loads = msgspec.json.Decoder(_FullLoads).decode
_loads = msgspec.json.Decoder(_Loads).decode
_get_load = msgspec.json.Decoder(list[_OldRank]).decode


def read_load(probe_request: ProbeRequest, reply: ProbeReply) -> WorkerLoad | None:
    """Return the load of all ranks together, None if the reply does not contain it."""
    if reply.status != 200:
        return None
    read: Callable[[Any], WorkerLoad | None] = _read_loads if probe_request == LOADS else _read_old
    try:
        return read(reply.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def read_health(reply: ProbeReply) -> WorkerHealth:
    """Return the health that a reply to the health probe means.

    503 comes from a server that starts, is paused or shuts down: it is alive, and its requests go on.
    """
    return WorkerHealth.BUSY if reply.status == 503 else health_by_status(reply)


def _read_loads(body: bytes) -> WorkerLoad | None:
    ranks = _loads(body).loads
    if not ranks:
        return None
    return WorkerLoad(
        running=sum(rank.num_running_reqs for rank in ranks),
        waiting=sum(rank.num_waiting_reqs for rank in ranks),
        cache_usage=max((rank.token_usage for rank in ranks if rank.token_usage is not None), default=None),
    )


def _read_old(body: bytes) -> WorkerLoad | None:
    ranks = _get_load(body)
    waiting = sum(rank.num_waiting_reqs for rank in ranks)
    return WorkerLoad(max(0, sum(rank.num_reqs for rank in ranks) - waiting), waiting) if ranks else None


def load_alternative(target: bytes) -> LoadAlternative | None:
    """Return the other load route for a client's request to ``target``, None for any other target.

    A release serves one of the two; the reply is converted into the shape that was requested.
    """
    path, _, query = target.decode("latin-1").partition("?")
    if path == GET_LOAD.target:
        return LoadAlternative(LOADS.target, partial(_read_as, _as_get_load))
    if path == LOADS.target.partition("?")[0] and "dp_rank" not in query:
        return LoadAlternative(GET_LOAD.target, partial(_read_as, _as_loads))
    return None


def _read_as(shape: Callable[[bytes], Any], body: bytes) -> Any:
    try:
        return shape(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _as_get_load(body: bytes) -> list[dict[str, int]]:
    """Return the reply to ``GET_LOAD`` that a reply to ``LOADS`` amounts to, as releases with both routes
    sent it.
    """
    return [_old_rank(rank) for rank in _full_loads(body).loads]


def _old_rank(rank: _FullRank) -> dict[str, int]:
    waiting = rank.num_waiting_reqs
    old = {"dp_rank": rank.dp_rank, "num_reqs": rank.num_running_reqs + waiting, "num_waiting_reqs": waiting}
    if rank.num_total_tokens is not None:
        old["num_tokens"] = rank.num_total_tokens
        if rank.num_used_tokens is not None:
            old["num_pending_tokens"] = rank.num_total_tokens - rank.num_used_tokens
    return old


def _as_loads(body: bytes) -> dict[str, list[dict[str, int]]]:
    """Return the reply to ``LOADS`` that a reply to ``GET_LOAD`` amounts to, with the members that it
    knows.
    """
    return {
        "loads": [
            {
                "dp_rank": rank.dp_rank,
                "num_running_reqs": max(0, rank.num_reqs - rank.num_waiting_reqs),
                "num_waiting_reqs": rank.num_waiting_reqs,
            }
            for rank in _get_load(body)
        ]
    }
