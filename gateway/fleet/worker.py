"""One engine server as the gateway knows it.

Owns: a worker's address, what its probes told, whether it may be used, and its load. Must never enter:
a dialect, HTTP.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from gateway.formats.base import WorkerInfo


class WorkerState(StrEnum):
    JOINING = "joining"  # never answered its probes so far
    READY = "ready"
    UNUSABLE = "unusable"  # answers, but cannot serve; the info's reason says why
    DEAD = "dead"  # was ready, then refused connections, broke replies or failed its probes


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
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise BadWorkerUrl(f"{url!r} is not a URL: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadWorkerUrl(f"{url!r} is not of the form http://host:port")
        if parts.username is not None or parts.password is not None:
            raise BadWorkerUrl("a worker's URL must not hold credentials; use a worker API key")
        if parts.query or parts.fragment:
            raise BadWorkerUrl(f"{url!r} must not have a query or a fragment")
        tls = parts.scheme == "https"
        return cls(
            url=url,
            host=parts.hostname,
            port=port or (443 if tls else 80),
            tls=tls,
            prefix=parts.path.rstrip("/").encode(),
            authority=parts.netloc.encode("idna" if not parts.netloc.isascii() else "ascii"),
        )


class Worker:
    """One worker. ``in_flight`` counts leases held by this gateway and is exact."""

    __slots__ = ("address", "authorization", "capability", "in_flight", "info", "reason", "state")

    def __init__(
        self, address: Address, *, capability: str | None = None, authorization: bytes | None = None
    ) -> None:
        self.address = address
        #: What it must turn out to offer, if its owner said so; None: whatever its probes tell.
        self.capability = capability
        self.authorization = authorization
        self.state = WorkerState.JOINING
        self.reason = "not probed yet"
        self.info: WorkerInfo | None = None
        self.in_flight = 0

    def __repr__(self) -> str:
        return f"<Worker {self.url} {self.state} in_flight={self.in_flight}>"

    @property
    def url(self) -> str:
        """Exactly as it was given."""
        return self.address.url

    @property
    def prefix(self) -> bytes:
        return self.address.prefix
