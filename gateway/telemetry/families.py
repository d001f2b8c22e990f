"""The metrics by name: what a scrape shows and what each of them means.

Owns: names, labels and help texts. Must never enter: how they are counted or written.

Names, labels and label values that Dynamo's dashboards use are kept as they are there; what Dynamo has
no metric for has a name of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple


class Family(NamedTuple):
    """One metric: its name behind the prefix (counters: with ``_total``), type, labels and meaning."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


_MODEL = ("model",)
_REQUEST = ("model", "endpoint", "request_type")

STARTED = Family("requests_started_total", "counter", _REQUEST, "Requests accepted")
REQUESTS = Family(
    "requests_total", "counter", (*_REQUEST, "status", "error_type"), "Requests ended, by how they ended"
)
DURATION = Family(
    "request_duration_seconds", "histogram", _MODEL, "From a request's acceptance to the end of its reply"
)
INFLIGHT = Family(
    "inflight_requests", "gauge", _MODEL, "Requests running now (older name of active_requests)"
)
ACTIVE = Family("active_requests", "gauge", _MODEL, "Requests running now")
QUEUED = Family("queued_requests", "gauge", _MODEL, "Requests running now that have no token yet")
DISCONNECTED = Family(
    "disconnected_clients", "gauge", (), "Clients that left before their reply ended; only grows"
)
ISL = Family("input_sequence_tokens", "histogram", _MODEL, "Prompt tokens of a request that was answered")
OSL = Family(
    "output_sequence_tokens", "histogram", _MODEL, "Generated tokens of a request, over all its samples"
)
CACHED = Family("cached_tokens", "histogram", _MODEL, "Prompt tokens a worker found in its cache")
OUTPUT = Family("output_tokens_total", "counter", _MODEL, "Tokens generated")
TTFT = Family(
    "time_to_first_token_seconds",
    "histogram",
    _MODEL,
    "From a streaming request's acceptance to its first token",
)
ITL = Family(
    "inter_token_latency_seconds", "histogram", _MODEL, "Time between tokens of a stream, once for each token"
)
CANCELLED = Family(
    "model_cancellation_total",
    "counter",
    _REQUEST,
    "Requests without their whole reply, as their client left or aborted them",
)
REJECTED = Family("model_rejection_total", "counter", ("model", "endpoint"), "Requests refused for overload")
FAILURES = Family("failures_total", "counter", ("class", "reason"), "Failed requests, by cause")
READY = Family("model_ready", "gauge", _MODEL, "1 if a usable worker serves the model, else 0")
CONTEXT = Family("model_context_length", "gauge", _MODEL, "Largest context any worker offers, in tokens")
LOOP_DELAY = Family("event_loop_delay_seconds", "histogram", (), "How late the event loop is with a timer")
WORKER_IN_FLIGHT = Family("worker_inflight_requests", "gauge", ("worker",), "Requests a worker holds now")
WORKER_STATE = Family(
    "worker_state",
    "gauge",
    ("worker", "state"),
    "1 for the state a worker is in: joining, ready, busy, suspect, held, dead, draining",
)
WORKERS = Family("workers", "gauge", ("state",), "Workers in each state")
TRANSITIONS = Family(
    "worker_transitions_total", "counter", ("from", "to"), "Times a worker went from one state to another"
)
STORE_HEALTHY = Family(
    "store_healthy",
    "gauge",
    (),
    "1 while the store of workers can be read; 0: the fleet stays as it was known last",
)
WORKER_RUNNING = Family(
    "worker_reported_running", "gauge", ("worker",), "Requests a worker says it runs, whoever sent them"
)
WORKER_WAITING = Family(
    "worker_reported_waiting", "gauge", ("worker",), "Requests a worker says wait in it, whoever sent them"
)
WORKER_REQUESTS = Family(
    "worker_requests_total",
    "counter",
    ("worker", "format", "outcome"),
    "Requests a worker was the last to serve: completed, failed, cancelled",
)
RETRIES = Family(
    "upstream_retries_total", "counter", ("format",), "Times a request was sent to another worker"
)
REQUEST_BYTES = Family("request_bytes_total", "counter", ("format",), "Bytes of request bodies received")
REPLY_BYTES = Family(
    "reply_bytes_total", "counter", ("format",), "Bytes of workers' reply bodies sent to clients"
)
REPLIES = Family(
    "replies_total", "counter", ("format", "ending"), "Replies of workers, by how their bytes say they ended"
)
REFUSED = Family(
    "requests_refused_total",
    "counter",
    ("format", "rule"),
    "Requests refused because they would kill a worker, by the rule that refused them",
)
UNAUTHORIZED = Family(
    "requests_unauthorized_total",
    "counter",
    ("realm",),
    "Requests refused for want of a valid key, by the kind of route: inference, metrics, control",
)
LIMITS = Family("limits_hit_total", "counter", ("limit",), "Times a limit was hit, by the limit")
KEYED = Family(
    "keyed_requests_total",
    "counter",
    ("placement",),
    "Times a request with a routing key or session was given to a worker: home (the one its key belongs to), "
    "or another, as that was unavailable or overloaded",
)
ROUTED = Family(
    "routed_replies_total",
    "counter",
    ("format",),
    "Replies with a note of a router behind the worker's URL about its choice",
)
LOST_LINES = Family(
    "access_log_dropped_total", "counter", (), "Access log lines lost because nobody read them"
)
WAITING = Family(
    "held_requests", "gauge", (), "Requests that wait for a usable worker, or for room at one, now"
)
WAITED = Family(
    "hold_seconds", "histogram", (), "How long a request waited for a usable worker, or for room at one"
)
NOT_HELD = Family(
    "holds_refused_total",
    "counter",
    ("reason",),
    "Requests that waited in vain, or for which there was no room",
)
PROCESSES = Family("processes", "gauge", (), "Processes of the gateway that serve")
PROCESS_RESTARTS = Family(
    "process_restarts_total", "counter", (), "Processes of the gateway started in place of one that died"
)

BUILD = Family("build_info", "gauge", ("version", "compiled"), "1; compiled: true for the compiled build")

#: error type -> the class under which Dynamo counts such failures
CLASSES: Mapping[str, str] = MappingProxyType(
    {
        "validation": "InvalidRequest",
        "not_found": "NotFound",
        "overload": "Overloaded",
        "unavailable": "Unavailable",
        "cancelled": "Cancelled",
        "response_timeout": "Timeout",
        "not_implemented": "NotImplemented",
        "internal": "Internal",
    }
)
#: error code -> the reason under which Dynamo counts it; where it has none, ``gateway.<code>``
REASONS: Mapping[str | None, str] = MappingProxyType(
    {
        None: "backend.replied",
        "invalid_request": "request.invalid",
        "unauthorized": "request.unauthorized",
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
