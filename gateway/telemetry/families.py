"""The names, labels and help texts of all metrics.

Owns: those names, labels and texts. Must never enter: how a metric is counted or written.

Metrics that Dynamo also has keep its names, labels and label values, so that its dashboards work; all others
have names of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Family(NamedTuple):
    """One metric: its name without the prefix (of a counter with ``_total``), type, labels and help text."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


_MODEL = ("model",)
_REQUEST = ("model", "endpoint", "request_type")
_RANKED = ("worker_id", "dp_rank", "worker_type")

STARTED = Family("requests_started_total", "counter", _REQUEST, "Requests accepted")
REQUESTS = Family(
    "requests_total", "counter", (*_REQUEST, "status", "error_type"), "Requests that ended, by outcome"
)
DURATION = Family(
    "request_duration_seconds",
    "histogram",
    _MODEL,
    "Time from the acceptance of a request to the end of its reply",
)
INFLIGHT = Family(
    "inflight_requests", "gauge", _MODEL, "Requests running now (older name of active_requests)"
)
ACTIVE = Family("active_requests", "gauge", _MODEL, "Requests running now")
QUEUED = Family("queued_requests", "gauge", _MODEL, "Requests running now that have received no token yet")
DISCONNECTED = Family(
    "disconnected_clients", "gauge", (), "Clients that disconnected before their reply ended; never decreases"
)
ISL = Family("input_sequence_tokens", "histogram", _MODEL, "Prompt tokens of an answered request")
OSL = Family(
    "output_sequence_tokens", "histogram", _MODEL, "Generated tokens of a request, over all its samples"
)
CACHED = Family("cached_tokens", "histogram", _MODEL, "Prompt tokens that were in the cache of the worker")
OUTPUT = Family("output_tokens_total", "counter", _MODEL, "Tokens generated")
TTFT = Family(
    "time_to_first_token_seconds",
    "histogram",
    _MODEL,
    "Time from the acceptance of a streaming request to its first token",
)
ITL = Family(
    "inter_token_latency_seconds",
    "histogram",
    _MODEL,
    "Time between two tokens of a stream, observed once for each token",
)
CANCELLED = Family(
    "model_cancellation_total",
    "counter",
    _REQUEST,
    "Requests without their complete reply, because their client disconnected or aborted them",
)
REJECTED = Family("model_rejection_total", "counter", ("model", "endpoint"), "Requests refused for overload")
FAILURES = Family("failures_total", "counter", ("class", "reason"), "Failed requests, by cause")
READY = Family("model_ready", "gauge", _MODEL, "1 if a usable worker serves the model, else 0")
CARD_CONFLICTS = Family(
    "model_card_conflicts",
    "gauge",
    _MODEL,
    "Members in which the cards of workers of the base model differ",
)
CONTEXT = Family("model_context_length", "gauge", _MODEL, "Largest context any worker offers, in tokens")
KV_BLOCKS = Family("model_total_kv_blocks", "gauge", _MODEL, "Largest KV cache of any rank, in blocks")
KV_BLOCK_SIZE = Family(
    "model_kv_cache_block_size",
    "gauge",
    _MODEL,
    "Largest block of a KV cache any worker reports, in tokens",
)
MAX_SEQUENCES = Family(
    "model_max_num_seqs", "gauge", _MODEL, "Most requests any worker reports that it runs at once"
)
MAX_BATCH_TOKENS = Family(
    "model_max_num_batched_tokens",
    "gauge",
    _MODEL,
    "Most prompt tokens any worker reports that it takes in one batch",
)
LOOP_DELAY = Family("event_loop_delay_seconds", "histogram", (), "How late the event loop runs a timer")
LOOP_STALLS = Family(
    "event_loop_stall_total", "counter", (), "Times the event loop ran a timer more than 5 ms late"
)
WORKER_IN_FLIGHT = Family(
    "worker_inflight_requests", "gauge", ("worker",), "Requests this gateway has in flight at a worker"
)
WORKER_STATE = Family(
    "worker_state",
    "gauge",
    ("worker", "state"),
    "1 for the state a worker is in: joining, ready, busy, suspect, held, dead, draining",
)
WORKERS = Family("workers", "gauge", ("state",), "Workers in each state")
TRANSITIONS = Family(
    "worker_transitions_total", "counter", ("from", "to"), "Times a worker changed from one state to another"
)
STORE_HEALTHY = Family(
    "store_healthy",
    "gauge",
    (),
    "1 while the store of workers can be read; 0: the fleet stays as it was last read",
)
WORKER_RUNNING = Family(
    "worker_reported_running",
    "gauge",
    ("worker",),
    "Requests running at a worker as it reports them, from all its clients",
)
WORKER_WAITING = Family(
    "worker_reported_waiting",
    "gauge",
    ("worker",),
    "Requests queued at a worker as it reports them, from all its clients",
)
LAST_TTFT = Family(
    "worker_last_time_to_first_token_seconds",
    "gauge",
    _RANKED,
    "Time to the first token of the last complete stream of a worker",
)
LAST_ISL = Family(
    "worker_last_input_sequence_tokens",
    "gauge",
    _RANKED,
    "Prompt tokens of the last complete stream of a worker",
)
LAST_ITL = Family(
    "worker_last_inter_token_latency_seconds",
    "gauge",
    _RANKED,
    "Mean time between two tokens of the last complete stream of a worker",
)
WORKER_REQUESTS = Family(
    "worker_requests_total",
    "counter",
    ("worker", "format", "outcome"),
    "Requests that ended at a worker, by outcome: completed, failed, cancelled",
)
RETRIES = Family(
    "upstream_retries_total", "counter", ("format",), "Times a request was sent to another worker"
)
REQUEST_BYTES = Family("request_bytes_total", "counter", ("format",), "Bytes of request bodies received")
REPLY_BYTES = Family(
    "reply_bytes_total", "counter", ("format",), "Bytes of reply bodies of workers that were sent to clients"
)
REPLIES = Family(
    "replies_total", "counter", ("format", "ending"), "Replies of workers, by the ending their bytes show"
)
REFUSED = Family(
    "requests_refused_total",
    "counter",
    ("format", "rule"),
    "Requests refused because they would crash a worker, by rule",
)
UNAUTHORIZED = Family(
    "requests_unauthorized_total",
    "counter",
    ("realm",),
    "Requests refused because they had no valid key, by the kind of route: inference, metrics, control",
)
LIMITS = Family("limits_hit_total", "counter", ("limit",), "Times a limit was reached, by limit")
KEYED = Family(
    "keyed_requests_total",
    "counter",
    ("placement",),
    "Requests with a routing key or session that were sent to a worker: home (the one assigned to the key), "
    "or another, because that was unavailable or overloaded",
)
ROUTED = Family(
    "routed_replies_total",
    "counter",
    ("format",),
    "Replies with routing data of a router behind the worker's URL",
)
LOST_LINES = Family(
    "access_log_dropped_total",
    "counter",
    (),
    "Access log lines lost because standard output was not read fast enough, or could not be written",
)
WAITING = Family("held_requests", "gauge", (), "Requests queued now: for a usable worker, or for room at one")
WAITED = Family(
    "hold_seconds", "histogram", (), "Time that a request was queued for a usable worker, or for room at one"
)
NOT_HELD = Family(
    "holds_refused_total",
    "counter",
    ("reason",),
    "Requests that left the queue without a worker, or found it full",
)
PROCESSES = Family("processes", "gauge", (), "Gateway processes that serve requests")
PROCESS_RESTARTS = Family(
    "process_restarts_total", "counter", (), "Gateway processes started to replace one that died"
)

BUILD = Family(
    "build_info", "gauge", ("version", "compiled"), "Always 1; compiled is true for the compiled build"
)

#: Seconds over which a delay of the event loop counts as a stall; one of the bounds of LOOP_DELAY.
STALL_SECONDS = 0.005
#: The label ``worker_type`` of a worker that runs prompts and generates, as Dynamo has it.
WORKER_TYPE = "decode"

#: error type -> the class Dynamo uses for such failures
CLASSES: Mapping[str, str] = MappingProxyType(
    {
        "validation": "InvalidRequest",
        "context_length": "InvalidRequest",
        "not_found": "NotFound",
        "overload": "Overloaded",
        "unavailable": "Unavailable",
        "cancelled": "Cancelled",
        "response_timeout": "Timeout",
        "not_implemented": "NotImplemented",
        "internal": "Internal",
    }
)
#: error code -> the reason Dynamo uses for it; if it has none, the reason is ``gateway.<code>``
REASONS: Mapping[str | None, str] = MappingProxyType(
    {
        None: "backend.replied",
        "invalid_request": "request.invalid",
        "unauthorized": "request.unauthorized",
        "context_length": "request.context_length",
        "unknown_model": "request.not_found",
        "no_worker": "backend.unavailable",
        "out_of_sockets": "capacity.exhausted",
        "overloaded": "capacity.worker_overloaded",
        "method_not_allowed": "request.method_not_allowed",
        "request_too_large": "request.too_large",
        "body_timeout": "request.timeout",
        "reply_unread": "request.timeout",
        "metadata_too_large": "request.metadata_too_large",
        "poisoned_request": "request.poisoned",
        "cancelled": "request.cancelled",
        "aborted": "request.aborted",
        "connect_failed": "backend.connect_failed",
        "not_received": "backend.not_received",
        "upstream_incomplete": "backend.incomplete",
        "upstream_malformed": "backend.malformed",
        "upstream_timeout": "backend.response_timeout",
    }
)
