"""How much an SGLang server has to do.

Owns: the questions, what their answers say, the answer to one in the shape of the other. Must never enter:
asking them, a policy.

No answer says that the next request would be refused, as none has the limit of the queue: only a 429 or 503
does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import msgspec

from gateway.formats.optional import LoadAlternative, WorkerHealth, WorkerLoad, health_by_status
from gateway.formats.worker_contract import ProbeReply, ProbeRequest

#: Read from shared memory, so cheap; its sections beside ``core`` are not wanted.
LOADS = ProbeRequest("GET", "/v1/loads?include=core")
#: Of builds before it.
GET_LOAD = ProbeRequest("GET", "/get_load")
QUESTIONS = (LOADS, GET_LOAD)


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Rank(msgspec.Struct):
    num_running_reqs: _Count
    num_waiting_reqs: _Count
    token_usage: float | None = None


class _Loads(msgspec.Struct):
    loads: list[_Rank]


class _WholeRank(_Rank):
    dp_rank: int = 0
    num_total_tokens: int | None = None
    num_used_tokens: int | None = None


class _WholeLoads(msgspec.Struct):
    loads: list[_WholeRank]


class _RankBefore(msgspec.Struct):
    """``num_reqs`` counts those that wait as well."""

    num_reqs: _Count
    num_waiting_reqs: _Count
    dp_rank: int = 0


_whole_loads = msgspec.json.Decoder(_WholeLoads).decode
_loads = msgspec.json.Decoder(_Loads).decode
_get_load = msgspec.json.Decoder(list[_RankBefore]).decode


def read_load(question: ProbeRequest, reply: ProbeReply) -> WorkerLoad | None:
    """All ranks together, None where the answer does not tell."""
    if reply.status != 200:
        return None
    read: Callable[[Any], WorkerLoad | None] = _read if question == LOADS else _read_before
    try:
        return read(reply.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def read_health(reply: ProbeReply) -> WorkerHealth:
    """503 comes from a server that starts, is paused or leaves: it lives, and what it has it goes on with."""
    return WorkerHealth.BUSY if reply.status == 503 else health_by_status(reply)


def _read(body: bytes) -> WorkerLoad | None:
    ranks = _loads(body).loads
    if not ranks:
        return None
    return WorkerLoad(
        running=sum(rank.num_running_reqs for rank in ranks),
        waiting=sum(rank.num_waiting_reqs for rank in ranks),
        cache_usage=max((rank.token_usage for rank in ranks if rank.token_usage is not None), default=None),
    )


def _read_before(body: bytes) -> WorkerLoad | None:
    ranks = _get_load(body)
    waiting = sum(rank.num_waiting_reqs for rank in ranks)
    return WorkerLoad(max(0, sum(rank.num_reqs for rank in ranks) - waiting), waiting) if ranks else None


def load_alternative(target: bytes) -> LoadAlternative | None:
    """Builds have one of the two, or the newer one and the older one in its words."""
    path, _, query = target.decode("latin-1").partition("?")
    if path == GET_LOAD.target:
        return LoadAlternative(LOADS.target, partial(_read_as, _as_before))
    if path == LOADS.target.partition("?")[0] and "dp_rank" not in query:
        return LoadAlternative(GET_LOAD.target, partial(_read_as, _as_since))
    return None


def _read_as(shape: Callable[[bytes], Any], body: bytes) -> Any:
    try:
        return shape(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _as_before(body: bytes) -> list[dict[str, int]]:
    """What ``GET_LOAD`` said, of an answer to ``LOADS``: as builds did that had both."""
    return [_rank_before(rank) for rank in _whole_loads(body).loads]


def _rank_before(rank: _WholeRank) -> dict[str, int]:
    waiting = rank.num_waiting_reqs
    said = {"dp_rank": rank.dp_rank, "num_reqs": rank.num_running_reqs + waiting, "num_waiting_reqs": waiting}
    if rank.num_total_tokens is not None:
        said["num_tokens"] = rank.num_total_tokens
        if rank.num_used_tokens is not None:
            said["num_pending_tokens"] = rank.num_total_tokens - rank.num_used_tokens
    return said


def _as_since(body: bytes) -> dict[str, list[dict[str, int]]]:
    """What ``LOADS`` says, of an answer to ``GET_LOAD``: as much of it as that knows."""
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
