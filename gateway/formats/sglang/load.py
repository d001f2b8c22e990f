"""How much an SGLang server has to do.

Owns: the questions, and what their answers say. Must never enter: asking them, a policy.

No answer says that the next request would be refused, as none has the limit of the queue: only a 429 or 503
does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from gateway.formats.base import ProbeReply, ProbeRequest, Vital, WorkerLoad, vital_of

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


class _RankBefore(msgspec.Struct):
    """``num_reqs`` counts those that wait as well."""

    num_reqs: _Count
    num_waiting_reqs: _Count


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


def vital(reply: ProbeReply) -> Vital:
    """503 comes from a server that starts, is paused or leaves: it lives, and what it has it goes on with."""
    return Vital.BUSY if reply.status == 503 else vital_of(reply)


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
