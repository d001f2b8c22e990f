"""The probes that identify a TensorRT-LLM server; its load, and what it says for its worker's card.

Owns: the probes and what their replies mean. Must never enter: sending them, other dialects.

The list of models names the engine. Of itself the engine tells little over HTTP: sizes and load only with
``return_perf_metrics``, a context length only if ``max_seq_len`` was set, its data-parallel ranks never.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from gateway.cards.structural_tag import OFF, StructuralTag, reported
from gateway.cards.token_budget import TokenBudget
from gateway.cards.values import CardValues
from gateway.formats.optional import WorkerLoad
from gateway.formats.worker_contract import ProbeReply, ProbeRequest, WorkerInfo

T = TypeVar("T")

#: What a worker offers.
CAPABILITY = "trtllm_completions_tokens"

#: No grammars are compiled for tools unless the operator says so.
CARD_DEFAULTS = CardValues(structural_tag=OFF)

VERSION = ProbeRequest("GET", "/version")
MODELS = ProbeRequest("GET", "/v1/models")
#: Metrics for Prometheus, with ``return_perf_metrics``.
PROMETHEUS = ProbeRequest("GET", "/prometheus/metrics")
PROBES = (VERSION, MODELS)
DETAILS = (PROMETHEUS,)
HEALTH = ProbeRequest("GET", "/health")
#: Statistics of the iterations since it was read last: each of them is reported once.
METRICS = ProbeRequest("GET", "/metrics", once=True)
#: The one that takes nothing from other readers comes first.
LOADS = (PROMETHEUS, METRICS)

#: Larger numbers are no counts.
_MOST = 2.0**53
_CONFIGURED = re.compile(
    rb'^trtllm_model_config_info\{[^\n]*?\bmax_model_len="([1-9][0-9]{0,8})"', re.MULTILINE
)
_GAUGE = re.compile(rb"^trtllm_(\w+)(?:\{[^\n]*\})? ([0-9][0-9.eE+-]*)[ \t\r]*$", re.MULTILINE)


def identify(replies: Mapping[str, ProbeReply]) -> WorkerInfo | None:
    """Return what is known from the replies; None unless they are this engine's."""
    listed = (_decoded(replies.get(MODELS.target), dict) or {}).get("data")
    models = [model for model in listed if isinstance(model, dict)] if isinstance(listed, list) else []
    if not any(model.get("owned_by") == "tensorrt_llm" for model in models):
        return None
    version = (_decoded(replies.get(VERSION.target), dict) or {}).get("version")
    names = {name: model for model in models if isinstance(name := model.get("id"), str)}
    return WorkerInfo(
        engine="trtllm",
        capability=CAPABILITY,
        usable=True,
        version=version if isinstance(version, str) else None,
        models=tuple(names),
        stream_mode="delta",
        model_entries=names,
        card=_card(replies.get(PROMETHEUS.target), reported(models[0])),
    )


def read_load(probe_request: ProbeRequest, reply: ProbeReply) -> WorkerLoad | None:
    """Return the load of all ranks together, None if the reply does not contain it."""
    return _of_gauges(_gauges(reply)) if probe_request == PROMETHEUS else _of_iterations(reply)


def _of_gauges(gauges: Mapping[bytes, float]) -> WorkerLoad | None:
    running, waiting = gauges.get(b"num_requests_running"), gauges.get(b"num_requests_waiting", 0)
    if running is None:
        return None
    return WorkerLoad(int(running), int(waiting), gauges.get(b"kv_cache_utilization"))


def _of_iterations(reply: ProbeReply) -> WorkerLoad | None:
    """Return the load at the latest iteration of each rank.

    An empty list means that there was no iteration since the last reading, so nothing runs; it is all that
    an engine without ``enable_iter_perf_stats`` ever answers.
    """
    listed = _decoded(reply, list)
    if listed is None:
        return None
    latest: dict[int | None, dict[str, Any]] = {}
    for entry in listed:
        if isinstance(entry, dict):
            rank = entry.get("attentionDpRank")
            latest[rank if isinstance(rank, int) else None] = entry
    running = sum(_count(entry.get("numActiveRequests")) for entry in latest.values())
    waiting = sum(_count(entry.get("numQueuedRequests")) for entry in latest.values())
    usages = [usage for entry in latest.values() if (usage := _cache_usage(entry)) is not None]
    return WorkerLoad(running, waiting, max(usages, default=None))


def _cache_usage(entry: dict[str, Any]) -> float | None:
    stats = entry.get("kvCacheStats")
    if not isinstance(stats, dict):
        return None
    used, blocks = _count(stats.get("usedNumBlocks")), _count(stats.get("maxNumBlocks"))
    return min(1.0, used / blocks) if blocks else None


def _count(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _card(reply: ProbeReply | None, policy: StructuralTag | None) -> CardValues:
    """Return what the worker says for its card: its ``policy``, if it has one, and what the metrics say.

    With a ``max_seq_len`` that was set, prompts over it are refused, and a reply ends at it. Without one the
    engine derives its own limit, which it does not tell.
    """
    values = CardValues(capabilities=(CAPABILITY,), structural_tag=policy)
    if reply is None or reply.status != 200:
        return values
    configured, gauges = _CONFIGURED.search(reply.body), _gauges(reply)
    limit = None if configured is None else int(configured[1])
    return replace(
        values,
        context_length=limit,
        kv_cache_block_size=_size(gauges, b"kv_cache_tokens_per_block"),
        total_kv_blocks=_size(gauges, b"kv_cache_max_blocks"),
        max_num_seqs=_size(gauges, b"max_num_active_requests"),
        token_budget=None if limit is None else TokenBudget(limit, reject_prompt_overflow=True),
    )


def _gauges(reply: ProbeReply) -> Mapping[bytes, float]:
    """Return the value of each metric without its prefix; of several rows, one per process, the largest."""
    found: dict[bytes, float] = {}
    for name, text in _GAUGE.findall(reply.body) if reply.status == 200 else ():
        with suppress(ValueError):
            if (value := float(text)) < _MOST:
                found[name] = max(value, found.get(name, 0.0))
    return found


def _size(gauges: Mapping[bytes, float], name: bytes) -> int | None:
    """Return a size, None for one that is not known before the first iteration."""
    return int(gauges.get(name, 0)) or None


def _decoded(reply: ProbeReply | None, kind: type[T]) -> T | None:
    """Return the JSON value of ``kind`` in a 200 reply, else None."""
    if reply is None or reply.status != 200:
        return None
    try:
        found = msgspec.json.decode(reply.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, kind) else None
