"""Settings: limits and timeouts.

Owns: limits on numbers, sizes and times. Must never enter: what happens when a limit is exceeded.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence

from pydantic import field_validator

from gateway.limits import DEFAULT_HEAD, HeadLimits, Timeouts
from gateway.settings.fields import SecondsByPath, Section, is_path, setting

_NUMBER = re.compile(r"[0-9]*\.?[0-9]+")
_PER_ROUTE = (
    ", in seconds, or PATH=SECONDS for one route; repeat the flag or separate by commas; 0 or unset: no limit"
)


class Limits(Section):
    """Limits and timeouts."""

    max_in_flight: int | None = setting(
        "DYN_MAX_IN_FLIGHT",
        None,
        "Most requests at once, queued ones included; more are refused immediately; unset: no limit",
        ge=1,
    )
    max_in_flight_per_worker: int | None = setting(
        "DYN_MAX_IN_FLIGHT_PER_WORKER",
        None,
        "Most requests in flight at one worker; more are queued, first come, first served; unset: no limit",
        ge=1,
    )
    overload_status_code: int = setting(
        "DYN_HTTP_OVERLOAD_STATUS_CODE",
        503,
        "Status of a request or connection that is refused because a limit on their number is reached",
        ge=400,
        le=599,
    )
    max_connections: int | None = setting(
        "DYN_HTTP_MAX_CONNECTIONS",
        None,
        "Most open connections of clients; unset: as many as the limit on open files allows",
        ge=1,
    )
    header_limit_kb: int = setting(
        "DYN_HTTP_HEADER_LIMIT_KB",
        DEFAULT_HEAD.size // 1024,
        "Largest head of a request or of a worker's reply, in KiB",
        ge=1,
        le=16384,
    )
    header_limit_lines: int = setting(
        "DYN_HTTP_HEADER_LIMIT_LINES",
        DEFAULT_HEAD.lines,
        "Most header lines of a request or of a worker's reply",
        ge=1,
    )
    header_timeout_secs: float = setting(
        "DYN_HTTP_HEADER_TIMEOUT_SECS",
        30.0,
        "Time to receive the head of a request, or to complete a TLS handshake, in seconds; then a 408",
        gt=0,
    )
    body_timeout_secs: float = setting(
        "DYN_HTTP_BODY_TIMEOUT_SECS",
        60.0,
        "Time without a byte of a request body, in seconds; then a 408",
        gt=0,
    )
    body_min_rate: int = setting(
        "DYN_HTTP_BODY_MIN_RATE",
        240,
        "Lowest rate of a request body in that time, in bytes per second; below it a 408; 0: no limit",
        ge=0,
    )
    unread_timeout_secs: float = setting(
        "DYN_HTTP_UNREAD_TIMEOUT_SECS",
        1800.0,
        "Time that a client may leave its reply unread, in seconds; then the connection is reset and the "
        "request aborted; 0: no limit",
        ge=0,
    )
    keep_alive_timeout_secs: float = setting(
        "DYN_HTTP_KEEP_ALIVE_TIMEOUT_SECS",
        75.0,
        "Time that an idle connection of a client is kept open, in seconds",
        gt=0,
    )
    first_byte_timeout_secs: SecondsByPath = setting(
        "DYN_FIRST_BYTE_TIMEOUT_SECS",
        (),
        f"Time to the first byte of a worker's reply{_PER_ROUTE}",
    )
    idle_timeout_secs: SecondsByPath = setting(
        "DYN_IDLE_TIMEOUT_SECS",
        (),
        f"Time without a byte of a reply that has begun{_PER_ROUTE}",
    )
    request_timeout_secs: SecondsByPath = setting(
        "DYN_REQUEST_TIMEOUT_SECS",
        (),
        f"Time for a complete request, time in the queue included{_PER_ROUTE}",
    )

    @field_validator("first_byte_timeout_secs", "idle_timeout_secs", "request_timeout_secs")
    @classmethod
    def _are_timeouts(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        _by_path(entries)
        return entries

    @property
    def head_limit(self) -> HeadLimits:
        """The limits on the head of a request or reply."""
        return HeadLimits(self.header_limit_kb * 1024, self.header_limit_lines)

    def timeouts(self, path: str) -> Timeouts:
        """Return the time limits of the route ``path``."""
        limits = [_by_path(entries) for entries in self._timed.values()]
        return Timeouts(*(limit.get(path, limit.get("", 0.0)) or None for limit in limits))

    def timed_paths(self) -> Mapping[str, Collection[str]]:
        """Return the routes that each field names, by field."""
        return {name: _by_path(entries).keys() - {""} for name, entries in self._timed.items()}

    @property
    def _timed(self) -> Mapping[str, Sequence[str]]:
        return {
            "first_byte_timeout_secs": self.first_byte_timeout_secs,
            "idle_timeout_secs": self.idle_timeout_secs,
            "request_timeout_secs": self.request_timeout_secs,
        }


def _by_path(entries: Sequence[str]) -> Mapping[str, float]:
    """Return seconds by path; the empty path stands for all other routes. Raise ValueError."""
    found: dict[str, float] = {}
    for entry in entries:
        path, _, seconds = entry.rpartition("=")
        if path and not is_path(path):
            raise ValueError(f"{path!r} must start with '/' and be a plain path")
        if _NUMBER.fullmatch(seconds) is None or math.isinf(float(seconds)):
            raise ValueError(f"{seconds!r} is not a number of seconds")
        if path in found:
            raise ValueError(f"{path!r} is given twice" if path else "two values for all routes are given")
        found[path] = float(seconds)
    return found
