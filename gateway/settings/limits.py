"""Settings: limits and timeouts.

Owns: how much, how many and how long there may be at once. Must never enter: what is done with who is over.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence

from pydantic import field_validator

from gateway.limits import DEFAULT_HEAD, HeadLimits, Timeouts
from gateway.settings.fields import Listed, Section, is_path, setting

_NUMBER = re.compile(r"[0-9]*\.?[0-9]+")
_PER_ROUTE = (
    ", in seconds, or PATH=SECONDS for one route; repeat the flag or separate by commas; 0 or unset: "
)


class Limits(Section):
    """Limits and timeouts."""

    max_in_flight: int | None = setting(
        "DYN_MAX_IN_FLIGHT",
        None,
        "How many requests there may be at once, those that wait included; more are refused at once; unset: "
        "any number",
        ge=1,
    )
    max_in_flight_per_worker: int | None = setting(
        "DYN_MAX_IN_FLIGHT_PER_WORKER",
        None,
        "How many requests a worker may have at once; more wait in line for one, first come, first served; "
        "unset: any number",
        ge=1,
    )
    overload_status_code: int = setting(
        "DYN_HTTP_OVERLOAD_STATUS_CODE",
        503,
        "Status of whatever is refused for want of room: to be in flight, to wait, or for a connection",
        ge=400,
        le=599,
    )
    max_connections: int | None = setting(
        "DYN_HTTP_MAX_CONNECTIONS",
        None,
        "How many connections clients may have open at once; unset: as many as open files allow",
        ge=1,
    )
    header_limit_kb: int = setting(
        "DYN_HTTP_HEADER_LIMIT_KB",
        DEFAULT_HEAD.size // 1024,
        "Largest head of a request, or of a worker's reply, in KiB",
        ge=1,
        le=16384,
    )
    header_limit_lines: int = setting(
        "DYN_HTTP_HEADER_LIMIT_LINES",
        DEFAULT_HEAD.lines,
        "Most header lines of a request, or of a worker's reply",
        ge=1,
    )
    header_timeout_secs: float = setting(
        "DYN_HTTP_HEADER_TIMEOUT_SECS",
        30.0,
        "How long the head of a request, or a TLS handshake, may take to come, in seconds; then a 408",
        gt=0,
    )
    body_timeout_secs: float = setting(
        "DYN_HTTP_BODY_TIMEOUT_SECS",
        60.0,
        "How long nothing may come of a request's body, in seconds; then a 408",
        gt=0,
    )
    body_min_rate: int = setting(
        "DYN_HTTP_BODY_MIN_RATE",
        240,
        "How much of a request's body has to come in that time, in bytes per second; else a 408; 0: any",
        ge=0,
    )
    unread_timeout_secs: float = setting(
        "DYN_HTTP_UNREAD_TIMEOUT_SECS",
        1800.0,
        "How long a client may leave its reply unread, in seconds; then it is cut and its worker told to "
        "stop; 0: any time",
        ge=0,
    )
    keep_alive_timeout_secs: float = setting(
        "DYN_HTTP_KEEP_ALIVE_TIMEOUT_SECS",
        75.0,
        "How long a connection is kept for a client that asks for nothing, in seconds",
        gt=0,
    )
    first_byte_timeout_secs: Listed = setting(
        "DYN_FIRST_BYTE_TIMEOUT_SECS",
        (),
        f"How long a worker may take to begin its reply{_PER_ROUTE}any time",
    )
    idle_timeout_secs: Listed = setting(
        "DYN_IDLE_TIMEOUT_SECS",
        (),
        f"How long a worker may send nothing of a reply that it began{_PER_ROUTE}any time",
    )
    request_timeout_secs: Listed = setting(
        "DYN_REQUEST_TIMEOUT_SECS",
        (),
        f"How long a request may take in all, waiting for a worker included{_PER_ROUTE}any time",
    )

    @field_validator("first_byte_timeout_secs", "idle_timeout_secs", "request_timeout_secs")
    @classmethod
    def _are_timeouts(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        _by_path(entries)
        return entries

    @property
    def head_limit(self) -> HeadLimits:
        """What the head of a request or reply may be."""
        return HeadLimits(self.header_limit_kb * 1024, self.header_limit_lines)

    def timeouts(self, path: str) -> Timeouts:
        """Those of the route ``path``."""
        return Timeouts(*(_of(_by_path(entries), path) for entries in self._timed.values()))

    def timed_paths(self) -> Mapping[str, Collection[str]]:
        """Field -> the routes that it names."""
        return {name: _by_path(entries).keys() - {""} for name, entries in self._timed.items()}

    @property
    def _timed(self) -> Mapping[str, Sequence[str]]:
        return {
            "first_byte_timeout_secs": self.first_byte_timeout_secs,
            "idle_timeout_secs": self.idle_timeout_secs,
            "request_timeout_secs": self.request_timeout_secs,
        }


def _by_path(entries: Sequence[str]) -> Mapping[str, float]:
    """Path -> seconds; the path of all other routes is empty. Raises ValueError."""
    found: dict[str, float] = {}
    for entry in entries:
        path, _, seconds = entry.rpartition("=")
        if path and not is_path(path):
            raise ValueError(f"{path!r} must start with '/' and be a plain path")
        if _NUMBER.fullmatch(seconds) is None or math.isinf(float(seconds)):
            raise ValueError(f"{seconds!r} is no number of seconds")
        if path in found:
            raise ValueError(f"{path!r} is given twice" if path else "two values for all routes are given")
        found[path] = float(seconds)
    return found


def _of(limits: Mapping[str, float], path: str) -> float | None:
    return limits.get(path, limits.get("", 0.0)) or None
