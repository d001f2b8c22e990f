"""The address of a worker: its URL, taken apart.

Owns: which URLs are accepted, and which of them name the same server. Must never enter: I/O, what answers at
the address.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from urllib.parse import urlsplit

#: A URL with a data-parallel rank, as routers of engines write it: ``http://host:port@3``.
_RANK = re.compile(r"(?P<server>[^@]*:[0-9]+(?:/[^@]*)?)@(?P<rank>[0-9]{1,5})")
#: An escape in a path, of a character that needs none, or of another one (RFC 3986, section 6.2.2).
_ESCAPE = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED = re.compile(r"[A-Za-z0-9._~-]")
#: An IPv4 address of one to four numbers, each decimal, octal or hexadecimal.
_NUMBERS = re.compile(r"(?:0x[0-9a-f]+|[0-9]+)(?:\.(?:0x[0-9a-f]+|[0-9]+)){0,3}")
#: By whether TLS is used.
_DEFAULT_PORTS = {False: 80, True: 443}
#: URLs whose identity or id is remembered.
REMEMBERED = 8192


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
        return cls(url, parts.hostname, port or _DEFAULT_PORTS[tls], tls, prefix, authority)

    @property
    def identity(self) -> str:
        """The normal spelling of the URL (RFC 3986, section 6.2): the same for all spellings of it."""
        host = _normal_host(self.host)
        server = f"{'https' if self.tls else 'http'}://{f'[{host}]' if ':' in host else host}"
        # A rank is recognised by the port before it.
        if self.rank is not None or self.port != _DEFAULT_PORTS[self.tls]:
            server = f"{server}:{self.port}"
        rank = "" if self.rank is None else f"@{self.rank}"
        return f"{server}{_normal_path(self.prefix.decode())}{rank}"


@lru_cache(REMEMBERED)
def identity_of(url: str) -> str:
    """Return the ``Address.identity`` of ``url``; a text that is no URL of a worker is its own identity."""
    try:
        return Address.parse(url).identity
    except BadWorkerUrl:
        return url


def spellings_of(url: str, urls: Iterable[str]) -> list[str]:
    """Return those of ``urls`` that are spellings of ``url``."""
    identity = identity_of(url)
    return [each for each in urls if identity_of(each) == identity]


def _normal_host(host: str) -> str:
    """Return an address as it is usually written, and a name as it is: connecting takes ``127.1``, too."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return _dotted(host)
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)


def _dotted(host: str) -> str:
    """Return the IPv4 address that the resolver reads in ``host`` (inet_addr in POSIX), else itself."""
    if not _NUMBERS.fullmatch(host):
        return host
    try:
        *first, last = (int(each, 8 if re.match("0[0-9]", each) else 0) for each in host.split("."))
    except ValueError:
        return host
    if any(each > 255 for each in first) or last >= 256 ** (4 - len(first)):
        return host
    return str(ipaddress.IPv4Address(bytes(first) + last.to_bytes(4 - len(first))))


def _normal_path(path: str) -> str:
    """Return ``path`` without needless escapes, dot segments and slashes at its end."""
    kept: list[str] = []
    for segment in _ESCAPE.sub(_normal_escape, path).split("/")[1:]:
        if segment == "..":
            del kept[-1:]
        elif segment != ".":
            kept.append(segment)
    return "".join(f"/{segment}" for segment in kept).rstrip("/")


def _normal_escape(escape: re.Match[str]) -> str:
    character = chr(int(escape[1], 16))
    return character if _UNRESERVED.fullmatch(character) else escape[0].upper()
