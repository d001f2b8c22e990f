"""Patterns of the URLs that may be registered as workers.

Owns: what a pattern matches. Must never enter: resolving a name, I/O.

A pattern is compared with the parts of a URL, never with its text, so that nothing in a path or a name can
look like another host.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gateway.upstream.address import Address

_PATTERN = re.compile(
    r"(?:(?P<scheme>https?)://)?(?P<host>\[[0-9a-fA-F:./]+\]|[0-9a-zA-Z*._-]+(?:/[0-9]{1,2})?)(?::(?P<port>\*|[0-9]{1,5}))?/?"
)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class UrlPattern:
    """A pattern ``[SCHEME://]HOST[:PORT]``. A part that is left out matches anything.

    HOST is a name or address, in which ``*`` stands for any characters except a dot (``*.pool`` matches one
    label in front), or a network of addresses (``10.0.0.0/8``, ``[fd00::/8]``). A name never matches a
    network, because names are not resolved.
    """

    scheme: str | None
    host: str
    network: Network | None
    port: int | None

    @classmethod
    def parse(cls, text: str) -> UrlPattern:
        """Return the pattern that ``text`` describes. Raise ValueError."""
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not of the form [SCHEME://]HOST[:PORT]")
        host, port = match["host"].strip("[]").lower(), match["port"]
        if port not in (None, "*") and not 0 < int(port) < 65536:
            raise ValueError(f"{text!r} has no usable port")
        return cls(match["scheme"], host, _network(host, text), None if port in (None, "*") else int(port))

    def matches(self, url: str) -> bool:
        """Return True if the valid worker URL ``url`` matches."""
        address = Address.parse(url)
        scheme = "https" if address.tls else "http"
        return (
            self.scheme in (None, scheme)
            and self.port in (None, address.port)
            and self._has(address.host.lower())
        )

    def _has(self, host: str) -> bool:
        if self.network is None:
            # As many labels as the pattern has, unless it is "*" alone.
            return self.host == "*" or (
                host.count(".") == self.host.count(".") and fnmatchcase(host, self.host)
            )
        try:
            return ipaddress.ip_address(host) in self.network
        except ValueError:
            return False


def permitted(url: str, patterns: Sequence[UrlPattern]) -> bool:
    """Return True if ``url`` may be a worker; without patterns any URL may."""
    return not patterns or any(pattern.matches(url) for pattern in patterns)


def _network(host: str, text: str) -> Network | None:
    if "/" not in host and ":" not in host:
        return None
    try:
        return ipaddress.ip_network(host, strict=False)
    except ValueError as error:
        raise ValueError(f"{text!r} names no network: {error}") from error
