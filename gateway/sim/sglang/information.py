"""The information routes of an SGLang server.

Owns: the bodies of their replies, in the shape of SGLang 0.5.22. Must never enter: anything that changes the
engine.
"""

from __future__ import annotations

from datetime import UTC, datetime
from posixpath import join
from typing import Any

from gateway.cards.structural_tag import KEY
from gateway.sim.config import SimConfig
from gateway.sim.engine import wall_clock
from gateway.sim.scheduler import FIRST_VERSION, Scheduler

VERSION = "0.5.22"
METRICS_TYPE = b"text/plain; version=1.0.0; charset=utf-8"
_SECTIONS = frozenset({"core", "memory", "spec", "lora", "disagg", "queues", "all"})
_MAX_RUNNING = 1 << 20
_KV_TOKENS = 1 << 20
_GRAPHS = dict.fromkeys(
    ("prefill", "decode", "target_verify", "draft_prefill", "draft_decode", "draft_extend"), 0.0
)


def model_info(config: SimConfig, scheduler: Scheduler, loaded: str | None) -> dict[str, Any]:
    """Return the body of ``/model_info``. ``loaded`` is the path of weights that were loaded after the
    start.
    """
    return {
        "model_path": loaded or join("/models", config.model),
        "served_model_name": loaded or config.model,
        "tokenizer_path": f"/models/{config.model}",
        "is_generation": True,
        "preferred_sampling_params": None,
        "weight_version": scheduler.version,
        "load_format": "auto",
        "reasoning_parser": config.reasoning_parser,
        "tool_call_parser": None,
        "disaggregation_mode": "null",
        "has_image_understanding": False,
        "has_audio_understanding": False,
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
    }


def server_info(config: SimConfig, scheduler: Scheduler) -> dict[str, Any]:
    """Return the body of ``/server_info``: the arguments given at the start, and the scheduler's state.

    A real server has no ``structural_tag``.
    """
    info = {
        "model_path": join("/models", config.model),
        "tokenizer_path": f"/models/{config.model}",
        "skip_tokenizer_init": config.skip_tokenizer,
        "context_length": config.max_model_len,
        "max_running_requests": config.max_running,
        "max_queued_requests": config.max_queued,
        "enable_priority_scheduling": config.priority_scheduling,
        "schedule_low_priority_values_first": False,
        "page_size": scheduler.cache.page,
        "disable_radix_cache": not config.cache_tokens,
        "tp_size": 1,
        "pp_size": 1,
        "dp_size": 1,
        "device": "simulated",
        "random_seed": config.seed,
        "host": config.host,
        "port": config.port,
        "served_model_name": config.model,
        "weight_version": FIRST_VERSION,
        "reasoning_parser": config.reasoning_parser,
        "tool_call_parser": None,
        "preferred_sampling_params": None,
        "allow_auto_truncate": config.allow_auto_truncate,
        "stream_interval": config.stream_interval,
        "incremental_streaming_output": config.incremental_streaming_output,
        "enable_metrics": config.enable_metrics,
        "kv_events_config": None,
        "speculative_algorithm": None,
        "speculative_num_steps": None,
        "speculative_eagle_topk": None,
        "speculative_num_draft_tokens": None,
        "speculative_adaptive": False,
        "enable_lora": config.enable_lora or None,
        "disaggregation_mode": "null",
        "launch_command": f"tito-gateway sim sglang --model {config.model}",
        "max_total_num_tokens": _KV_TOKENS,
        "max_req_input_len": config.max_model_len - 1,
        "startup_time": {
            "load_weight": 0.0,
            "kv_cache_allocation": 0.0,
            "scheduler_e2e": 0.0,
            "cuda_graph": _GRAPHS,
            "tokenizer_e2e": 0.0,
        },
        "kv_events": None,
        "internal_states": [
            {
                "effective_max_running_requests_per_dp": config.max_running or _MAX_RUNNING,
                "weight_version": scheduler.version,
                "last_gen_throughput": 0.0,
                "memory_usage": {
                    "weight": 0.0,
                    "kvcache": 0.0,
                    "token_capacity": _KV_TOKENS,
                    "graph": _GRAPHS,
                },
            }
        ],
        "version": VERSION,
        "frontend": "python",
        KEY: config.dyn_structural_tag.member(),
    }
    return {name: value for name, value in info.items() if name not in config.server_info_without.split(",")}


def model_card(config: SimConfig, name: str, *, parent: str | None = None) -> dict[str, Any]:
    """Return the card of the model, or of an adapter, which has a ``parent``."""
    return {
        "id": name,
        "object": "model",
        "created": int(wall_clock()),
        "owned_by": "sglang",
        "root": name,
        "parent": parent,
        "max_model_len": None if parent else config.max_model_len,
    }


def loads(config: SimConfig, scheduler: Scheduler, include: str, dp_rank: str | None) -> dict[str, Any]:
    """Return the body of ``/v1/loads``. Raises ValueError for a section that does not exist."""
    wanted = set(include.split(","))
    if wanted - _SECTIONS:
        raise ValueError(include)
    rank = None if dp_rank is None else int(dp_rank)
    return {
        "timestamp": datetime.now(UTC).isoformat(),
        "version": VERSION,
        "accelerator": None,
        "num_accelerators": 1,
        "loads": [_load(config, scheduler, wanted)] if rank in (None, 0) else [],
    }


def _load(config: SimConfig, scheduler: Scheduler, wanted: set[str]) -> dict[str, Any]:
    used, cache = scheduler.used_tokens, scheduler.cache
    load: dict[str, Any] = {
        "timestamp": wall_clock(),
        "dp_rank": 0,
        "num_running_reqs": len(scheduler.running),
        "num_waiting_reqs": scheduler.queued,
        "num_waiting_uncached_tokens": sum(len(sequence.prompt) for sequence in scheduler.waiting),
        "num_used_tokens": used,
        "num_total_tokens": used,
        "num_active_tokens": used,
        "num_prealloc_ready_tokens": 0,
        "max_total_num_tokens": _KV_TOKENS,
        "max_running_requests": config.max_running or _MAX_RUNNING,
        "token_usage": round(used / _KV_TOKENS, 3),
        "gen_throughput": 0.0,
        "cache_hit_rate": round(cache.hits / cache.queries, 4) if cache.queries else 0.0,
        "utilization": 0.0,
        "total_prefill_uncached_tokens": scheduler.uncached_tokens,
        "total_prefill_busy_us": 0,
        "decode_moments": None,
    }
    if wanted & {"all", "memory"}:
        load["memory"] = {"weight_gb": 0.0, "kv_cache_gb": 0.0, "graph_gb": 0.0, "token_capacity": _KV_TOKENS}
    if wanted & {"all", "disagg"}:
        load["disaggregation"] = _DISAGGREGATION
    if wanted & {"all", "queues"}:
        load["queues"] = {
            "waiting": scheduler.queued,
            "grammar": 0,
            "paused": 0,
            "retracted": 0,
            "prealloc_ready": 0,
        }
    return load


_DISAGGREGATION = {
    "mode": "null",
    "prefill_bootstrap_queue_reqs": 0,
    "prefill_inflight_queue_reqs": 0,
    "decode_prealloc_queue_reqs": 0,
    "decode_transfer_queue_reqs": 0,
    "decode_retracted_queue_reqs": 0,
    "kv_transfer_speed_gb_s": 0.0,
    "kv_transfer_latency_ms": 0.0,
}


def metrics(config: SimConfig, scheduler: Scheduler) -> bytes:
    """Return the metrics that are known here, in Prometheus text format."""
    cache = scheduler.cache
    used = scheduler.used_tokens
    total = sum(scheduler.finished.values())
    values: list[tuple[str, str, float]] = [
        ("num_running_reqs", "gauge", len(scheduler.running)),
        ("num_queue_reqs", "gauge", scheduler.queued),
        ("num_used_tokens", "gauge", used),
        ("max_total_num_tokens", "gauge", _KV_TOKENS),
        ("token_usage", "gauge", used / _KV_TOKENS),
        ("cache_hit_rate", "gauge", cache.hits / cache.queries if cache.queries else 0.0),
        ("gen_throughput", "gauge", 0.0),
        ("prompt_tokens_total", "counter", scheduler.prompt_tokens),
        ("generation_tokens_total", "counter", scheduler.generated_tokens),
        ("num_requests_total", "counter", total),
        ("num_aborted_requests_total", "counter", scheduler.finished["abort"]),
    ]
    lines = []
    for name, kind, value in values:
        lines.append(f"# TYPE sglang:{name} {kind}")
        lines.append(f'sglang:{name}{{model_name="{config.model}"}} {float(value)}')
    return ("\n".join(lines) + "\n").encode()
