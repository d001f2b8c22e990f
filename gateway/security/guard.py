"""Authorization: which key gives access to which routes.

Owns: the keys that each access scope accepts, and removing the gateway's keys from requests. Must never
enter: paths, a dialect, where keys come from.

``inference`` routes require an API key if one is configured, and accept an admin key as well. ``control``
routes require an admin key, or an API key if no admin key is configured. ``metrics`` accept either, unless
they are open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from gateway.errors import GatewayError, Unauthorized
from gateway.formats.contract import Headers
from gateway.security.keys import Keys, names_with_keys, tokens_of

_MISSING = "a key is needed here, as the header 'Authorization: Bearer <key>' or 'X-API-Key: <key>'"


class AccessScope(StrEnum):
    """The kinds of routes, by the key they require."""

    OPEN = "open"
    INFERENCE = "inference"
    METRICS = "metrics"
    CONTROL = "control"


class Source(Protocol):
    """A source of the keys of one kind, which can change at any time."""

    @property
    def keys(self) -> Keys: ...


class Guard:
    """A check of requests' keys.

    ``api`` and ``admin`` are None where no such key is configured. ``refused`` is called with the scope of
    each request that is refused.
    """

    def __init__(
        self,
        api: Source | None = None,
        admin: Source | None = None,
        *,
        metrics_open: bool = False,
        refused: Callable[[AccessScope], None] = lambda scope: None,
    ) -> None:
        self._sources = [source for source in (api, admin) if source is not None]
        self._accepted: Mapping[AccessScope, Sequence[Source]] = {
            AccessScope.OPEN: (),
            AccessScope.INFERENCE: () if api is None else self._sources,
            AccessScope.METRICS: () if metrics_open else self._sources,
            AccessScope.CONTROL: self._sources[-1:],
        }
        self._refused = refused
        #: True if any key is configured. Otherwise all requests are admitted, with all headers.
        self.armed = bool(self._sources)

    def __repr__(self) -> str:
        guarded = ", ".join(scope for scope, accepted in self._accepted.items() if accepted)
        return f"<Guard {guarded or 'open'}>"

    def admit(self, scope: AccessScope, headers: Headers) -> Headers:
        """Return ``headers`` without the gateway's keys: no worker must get them. Raises Unauthorized."""
        known = self._known(headers)
        accepted = self._accepted[scope]
        if accepted and not any(source in known for source in accepted):
            self._refused(scope)
            raise Unauthorized("the key is not valid here" if tokens_of(headers) else _MISSING)
        return self._without_keys(headers)

    def admits(self, scope: AccessScope, headers: Headers) -> bool:
        """Return True if ``admit`` would admit the request."""
        accepted, known = self._accepted[scope], self._known(headers)
        return not accepted or any(source in known for source in accepted)

    def _known(self, headers: Headers) -> Sequence[Source]:
        """Return the sources that contain a key of the request. All are searched, to take the same time."""
        tokens = tokens_of(headers)
        return [source for source in self._sources if any([source.keys.has(token) for token in tokens])]

    def _without_keys(self, headers: Headers) -> Headers:
        """Return ``headers`` without those that contain a key of the gateway, with all their lines."""
        names = names_with_keys(headers, [source.keys for source in self._sources])
        return [line for line in headers if line[0] not in names] if names else headers


def challenge(error: GatewayError) -> list[tuple[bytes, bytes]]:
    """Return the header that a 401 must have (RFC 9110, section 11.6.1); nothing for other errors."""
    return [(b"www-authenticate", b"Bearer")] if isinstance(error, Unauthorized) else []
