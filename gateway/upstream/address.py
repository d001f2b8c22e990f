"""Where a worker listens, as its URL says.

Owns: which URLs can be used. Must never enter: I/O, what stands there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

#: What a router puts behind a server's URL to name one of its data-parallel ranks: ``http://host:port@3``.
_RANK = re.compile(r"(?P<server>[^@]*:[0-9]+(?:/[^@]*)?)@(?P<rank>[0-9]{1,5})")


class BadWorkerUrl(ValueError):
    """A worker's URL cannot be used; the message says why."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a worker listens. ``host`` has no brackets; ``authority`` is the Host header's value.

    ``url`` is exactly what was given; ``rank`` is the data-parallel rank at its end, if it names one.
    """

    url: str
    host: str
    port: int
    tls: bool
    prefix: bytes
    authority: bytes
    rank: int | None = None

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read an ``http`` or ``https`` URL, IPv6 in brackets, path prefix and ``@rank`` at its end allowed.

        Raises BadWorkerUrl.
        """
        ranked = _RANK.fullmatch(url)
        if ranked is None:
            return cls._plain(url)
        return replace(cls._plain(ranked["server"]), url=url, rank=int(ranked["rank"]))

    @classmethod
    def _plain(cls, url: str) -> Address:
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
