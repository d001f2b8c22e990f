"""The address of a worker: its URL, taken apart.

Owns: which URLs are accepted. Must never enter: I/O, what answers at the address.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

#: A URL with a data-parallel rank, as routers of engines write it: ``http://host:port@3``.
_RANK = re.compile(r"(?P<server>[^@]*:[0-9]+(?:/[^@]*)?)@(?P<rank>[0-9]{1,5})")


class BadWorkerUrl(ValueError):
    """The URL of a worker cannot be used; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a worker. ``host`` has no brackets; ``authority`` is the value of the Host header.

    ``url`` is the text that was parsed, ``prefix`` the path before all request paths, and ``rank`` the
    data-parallel rank at the end of the URL, None without one.
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
        """Parse an ``http`` or ``https`` URL. Raises BadWorkerUrl.

        IPv6 addresses in brackets, a path prefix and ``@rank`` at the end are allowed.
        """
        ranked = _RANK.fullmatch(url)
        if ranked is None:
            return cls._plain(url)
        return replace(cls._plain(ranked["server"]), url=url, rank=int(ranked["rank"]))

    @classmethod
    def _plain(cls, url: str) -> Address:
        if "@" in url:  # checked first, because the other messages quote the URL
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
