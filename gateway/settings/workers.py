"""Settings: workers and routing.

Owns: which workers there are at start and may be at all, how one is picked, probed, called and waited for.
Must never enter: where the list of workers lives, beyond its name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Literal, Self

from pydantic import field_validator, model_validator

from gateway.formats.routes import RelayedRoute, parse_control_call
from gateway.routing.policy import POLICIES
from gateway.settings.fields import Choice, Key, Listed, Placeholder, Section, setting
from gateway.upstream.address import Address, BadWorkerUrl
from gateway.upstream.url_patterns import UrlPattern, permitted

_NAMED_WORKER = re.compile(r"(?P<format>[a-z][a-z0-9_-]*)=(?P<url>.*)")


@dataclass(frozen=True, slots=True)
class WorkerEntry:
    """A configured worker: its URL and, if given, the format it speaks."""

    url: str
    format: str | None = None

    @classmethod
    def parse(cls, text: str) -> WorkerEntry:
        """Parse ``URL`` or ``FORMAT=URL``. Raise BadWorkerUrl."""
        match = _NAMED_WORKER.fullmatch(text)
        entry = cls(match["url"], match["format"]) if match else cls(text)
        Address.parse(entry.url)
        return entry


class Workers(Section):
    """Workers and routing."""

    worker: Annotated[Listed, Placeholder("[FORMAT=]URL")] = setting(
        "DYN_WORKER",
        (),
        "URL of a worker, or FORMAT=URL to set the format it speaks (otherwise it is probed); repeat the "
        "flag or separate by commas",
    )
    worker_api_key: Key = setting(
        "DYN_WORKER_API_KEY",
        None,
        "Key that is sent to every worker as a bearer token, instead of that of the client",
    )
    router_mode: Annotated[Choice[str], Placeholder("|".join(POLICIES))] = setting(
        "DYN_ROUTER_MODE", "least_in_flight", f"Policy that selects a worker: {', '.join(POLICIES)}"
    )
    router_overload_factor: float = setting(
        "DYN_ROUTER_OVERLOAD_FACTOR",
        1.5,
        "Requests with a routing key or session go to another worker if theirs has more than this many times "
        "the requests of the average worker; 0: never",
        ge=0,
    )
    connect_timeout_secs: float = setting(
        "DYN_CONNECT_TIMEOUT_SECS", 5.0, "Time to connect to a worker, in seconds", gt=0
    )
    probe_interval_secs: float = setting(
        "DYN_PROBE_INTERVAL_SECS",
        5.0,
        "Time between two probes of a usable worker, in seconds; 0: a usable worker is not probed",
        ge=0,
    )
    min_weight_version: str | None = setting(
        "DYN_MIN_WEIGHT_VERSION",
        None,
        "A worker is cordoned until its weight version is at least this (integers) or equal to it (any "
        "other)",
        min_length=1,
    )
    queue_seconds: float = setting(
        "DYN_QUEUE_SECONDS",
        0.0,
        "How long a request may be queued while no worker is usable, in seconds; 0: it is refused at once",
        alias="hold_seconds",
        ge=0,
    )
    queue_requests: int = setting(
        "DYN_QUEUE_REQUESTS",
        10000,
        "How many requests may be queued at once; more are refused",
        alias="hold_requests",
        ge=1,
    )
    queue_bytes: int = setting(
        "DYN_QUEUE_BYTES",
        1073741824,
        "How much memory the bodies of queued requests may take together, in bytes",
        alias="hold_bytes",
        ge=1,
    )
    control_timeout_secs: float = setting(
        "DYN_CONTROL_TIMEOUT_SECS",
        1800.0,
        "Time for a control call to a worker, such as one that loads weights, in seconds; 0: no limit",
        ge=0,
    )
    relay_path: Annotated[Listed, Placeholder("[FORMAT=]PATH")] = setting(
        "DYN_RELAY_PATHS",
        (),
        "An additional inference route that is relayed unchanged: PATH (POST), METHOD PATH, or a path with * "
        "for a segment, at its end for all below it (any method); with FORMAT= before it for workers of one "
        "format; repeat the flag or separate by commas",
    )
    control_path: Annotated[Listed, Placeholder("TO=PATH")] = setting(
        "DYN_CONTROL_PATHS",
        (),
        "An additional control route, PATH (POST) or METHOD PATH: TO is all (sent to every worker), one (to "
        "the worker it names) or any (GET, to any usable one); repeat the flag or separate by commas",
    )
    allow_worker_url: Annotated[Listed, Placeholder("PATTERN")] = setting(
        "DYN_ALLOW_WORKER_URL",
        (),
        "Pattern of URLs that may be registered as workers: [SCHEME://]HOST[:PORT], where HOST may contain * "
        "or be a network such as 10.0.0.0/8; repeat the flag or separate by commas; unset: any URL",
    )
    discovery_backend: Choice[Literal["memory", "file", "etcd", "kubernetes"]] = setting(
        "DYN_DISCOVERY_BACKEND",
        "memory",
        "Store of the list of workers: memory (of this process), file, etcd, kubernetes",
    )

    @field_validator("worker")
    @classmethod
    def _usable_urls(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        seen: set[str] = set()
        for entry in entries:
            try:
                url = WorkerEntry.parse(entry).url
            except BadWorkerUrl as error:
                raise ValueError(str(error)) from error
            if url in seen:
                raise ValueError(f"{url!r} is given twice; without FORMAT= every format is tried")
            seen.add(url)
        return entries

    @field_validator("router_mode")
    @classmethod
    def _is_a_policy(cls, name: str) -> str:
        if name not in POLICIES:
            raise ValueError(f"{name!r} must be one of {', '.join(POLICIES)}")
        return name

    @field_validator("allow_worker_url")
    @classmethod
    def _are_patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            UrlPattern.parse(pattern)
        return patterns

    @field_validator("relay_path")
    @classmethod
    def _are_paths(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        for entry in entries:
            RelayedRoute.parse(entry.rpartition("=")[2])
        return entries

    @field_validator("control_path")
    @classmethod
    def _are_calls(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        for entry in entries:
            parse_control_call(entry)
        return entries

    @field_validator("router_overload_factor")
    @classmethod
    def _leaves_somebody(cls, factor: float) -> float:
        if 0 < factor < 1:
            raise ValueError("must be 0, or at least 1: otherwise all workers could be over it")
        return factor

    @model_validator(mode="after")
    def _workers_are_allowed(self) -> Self:
        for entry in self.workers:
            if not permitted(entry.url, self.worker_patterns):
                raise ValueError(f"DYN_WORKER: {entry.url!r} matches no pattern of DYN_ALLOW_WORKER_URL")
        return self

    @property
    def workers(self) -> tuple[WorkerEntry, ...]:
        """The parsed entries of ``worker``."""
        return tuple(WorkerEntry.parse(entry) for entry in self.worker)

    @property
    def worker_patterns(self) -> tuple[UrlPattern, ...]:
        """The parsed patterns of ``allow_worker_url``."""
        return tuple(UrlPattern.parse(pattern) for pattern in self.allow_worker_url)

    @property
    def worker_authorization(self) -> bytes | None:
        """The ``Authorization`` header for every worker; None: that of the client is forwarded."""
        key = self.worker_api_key
        return None if key is None else b"Bearer " + key.get_secret_value().encode()
