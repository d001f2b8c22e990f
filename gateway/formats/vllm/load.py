"""The load of a vLLM server.

Owns: the probes for it, and the meaning of their replies (vLLM 0.33.0). Must never enter: sending them, a
policy.

No reply shows that the next request would be refused: only a 429 or 503 does.
"""

from __future__ import annotations

import re

import msgspec

from gateway.formats.optional import WorkerLoad
from gateway.formats.worker_contract import ProbeReply, ProbeRequest

#: Always served; the scheduler's own numbers, one row per engine.
METRICS = ProbeRequest("GET", "/metrics")
#: For servers whose metrics are switched off. It stays 0 unless tracking is on.
LOAD = ProbeRequest("GET", "/load")
REQUESTS = (METRICS, LOAD)

_ROW = re.compile(
    rb"^vllm:(num_requests_running|num_requests_waiting|kv_cache_usage_perc)(?:\{[^\n]*\})?"
    rb" ([0-9][0-9.eE+-]*)[ \t\r]*$",
    re.MULTILINE,
)


class _Load(msgspec.Struct):
    server_load: int


_load = msgspec.json.Decoder(_Load).decode


def read_load(probe_request: ProbeRequest, reply: ProbeReply) -> WorkerLoad | None:
    """Return the load of all engines together, None if the reply does not contain it."""
    if reply.status != 200:
        return None
    return _of_metrics(reply.body) if probe_request == METRICS else _of_load(reply.body)


def _of_metrics(body: bytes) -> WorkerLoad | None:
    found: dict[bytes, list[float]] = {}
    for name, value in _ROW.findall(body):
        try:
            found.setdefault(name, []).append(float(value))
        except ValueError:
            return None
    running, waiting = found.get(b"num_requests_running"), found.get(b"num_requests_waiting", [])
    if running is None:
        return None
    usage = max(found.get(b"kv_cache_usage_perc", ()), default=None)
    try:
        return WorkerLoad(int(sum(running)), int(sum(waiting)), usage)
    except OverflowError:  # infinite
        return None


def _of_load(body: bytes) -> WorkerLoad | None:
    try:
        load = _load(body).server_load
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return WorkerLoad(load, 0) if load > 0 else None  # 0 may mean that it is not tracked
