"""One engine server as the gateway knows it.

Owns: a worker's address, what its probes told, whether it may be used, its load and its connections. Must
never enter: a dialect, HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple
from urllib.parse import urlsplit

from gateway.formats.base import WorkerInfo
from gateway.transport.pool import Pool


class WorkerState(StrEnum):
    JOINING = "joining"  # has not answered its probes yet
    READY = "ready"
    UNUSABLE = "unusable"  # answers, but cannot serve; ``Worker.reason`` says why
    DEAD = "dead"  # was ready, then refused connections or failed its probes


class BadWorkerUrl(ValueError):
    """A worker's URL cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a worker listens. ``host`` has no brackets; ``authority`` is the Host header's value."""

    url: str
    host: str
    port: int
    tls: bool
    prefix: bytes
    authority: bytes

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read an ``http`` or ``https`` URL, IPv6 in brackets, path prefix allowed. Raises BadWorkerUrl."""
        if "@" in url:  # asked first, as the other messages quote the URL
            raise BadWorkerUrl("a worker's URL must not hold credentials; use a worker API key")
        try:
            parts = urlsplit(url)
            port = parts.port
            authority = parts.netloc.encode("ascii")
            prefix = parts.path.rstrip("/").encode("ascii")
        except ValueError as error:
            raise BadWorkerUrl(f"{url!r} is not a URL: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadWorkerUrl(f"{url!r} is not of the form http://host:port")
        if port == 0:
            raise BadWorkerUrl(f"{url!r} has no usable port")
        if "?" in url or "#" in url:
            raise BadWorkerUrl(f"{url!r} must not have a query or a fragment")
        if any(character.isspace() or not character.isprintable() for character in url):
            raise BadWorkerUrl(f"{url!r} must not hold spaces or control characters")
        tls = parts.scheme == "https"
        return cls(url, parts.hostname, port or (443 if tls else 80), tls, prefix, authority)


class View(NamedTuple):
    """A worker as one format sees it (gateway.formats.base.WorkerView)."""

    prefix: bytes
    authorization: bytes | None
    info: WorkerInfo | None


class Worker:
    """One worker. ``in_flight`` counts leases held by this gateway and is exact.

    ``infos`` has one entry per format that recognised it, by the format's name. ``only`` is the format its
    owner said it speaks, None: whatever its probes tell. ``life`` is an object that is replaced each time it
    is found dead: what tells the process behind the URL from the one after it.
    """

    __slots__ = (
        "__weakref__",
        "_views",
        "address",
        "authorization",
        "in_flight",
        "infos",
        "last_reply_at",
        "life",
        "only",
        "pool",
        "reason",
        "state",
        "strikes",
    )

    def __init__(
        self, address: Address, *, only: str | None = None, authorization: bytes | None = None
    ) -> None:
        self.address = address
        self.pool: Pool  # set by the fleet that takes the worker in
        self.only = only
        self.authorization = authorization
        self.state = WorkerState.JOINING
        self.reason = "not probed yet"
        self.infos: Mapping[str, WorkerInfo] = {}
        self._views: dict[str, View] = {}
        self.in_flight = 0
        self.life = object()
        #: Failed probes in a row.
        self.strikes = 0
        #: Event-loop time of its last whole reply; a sign of life that spares a probe.
        self.last_reply_at = float("-inf")

    def __repr__(self) -> str:
        return f"<Worker {self.url} {self.state} in_flight={self.in_flight}>"

    @property
    def url(self) -> str:
        """Exactly as it was given."""
        return self.address.url

    def view(self, format_name: str) -> View:
        """What the format called ``format_name`` may know of it."""
        info = self.infos.get(format_name)
        view = self._views.get(format_name)
        if view is None or view.info is not info:
            view = self._views[format_name] = View(self.address.prefix, self.authorization, info)
        return view

    def offers(self, capability: str) -> WorkerInfo | None:
        """Its info for ``capability`` if it can serve that, else None."""
        for info in self.infos.values():
            if info.usable and info.capability == capability:
                return info
        return None
