"""Who may call what.

Owns: which key opens which kind of route, and that a key of the gateway goes no further. Must never enter:
paths, a dialect, where keys come from.

``inference`` routes ask for an API key if there is one, and take an admin key as well. ``control`` routes ask
for an admin key; where there is none, for an API key. ``metrics`` take either, unless they are open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from gateway.errors import GatewayError, Unauthorized
from gateway.formats.contract import Headers
from gateway.security.keys import Keys, bearer


class AccessScope(StrEnum):
    """The kinds of routes, by the key they ask for."""

    OPEN = "open"
    INFERENCE = "inference"
    METRICS = "metrics"
    CONTROL = "control"


class Source(Protocol):
    """Where the keys of one kind are, as they are now."""

    @property
    def keys(self) -> Keys: ...


class Guard:
    """``api`` and ``admin`` are None where no such key is configured. ``refused`` is told each refusal."""

    def __init__(
        self,
        api: Source | None = None,
        admin: Source | None = None,
        *,
        metrics_open: bool = False,
        refused: Callable[[AccessScope], None] = lambda scope: None,
    ) -> None:
        self._sources = [source for source in (api, admin) if source is not None]
        self._asked: Mapping[AccessScope, Sequence[Source]] = {
            AccessScope.OPEN: (),
            AccessScope.INFERENCE: () if api is None else self._sources,
            AccessScope.METRICS: () if metrics_open else self._sources,
            AccessScope.CONTROL: self._sources[-1:],
        }
        self._refused = refused
        #: Whether any key is configured; if not, nobody is refused and no header is taken away.
        self.armed = bool(self._sources)

    def __repr__(self) -> str:
        asking = ", ".join(scope for scope, asked in self._asked.items() if asked)
        return f"<Guard {asking or 'open'}>"

    def admit(self, scope: AccessScope, headers: Headers) -> Headers:
        """The request's ``headers`` without a key of the gateway, which is nobody else's business.

        Raises Unauthorized.
        """
        known = self._known(headers)
        asked = self._asked[scope]
        if asked and not any(source in known for source in asked):
            self._refused(scope)
            raise Unauthorized(_what_is_wrong(headers))
        return [line for line in headers if line[0] != b"authorization"] if known else headers

    def admits(self, scope: AccessScope, headers: Headers) -> bool:
        """Whether a route of ``scope`` would be open to such a request."""
        asked, known = self._asked[scope], self._known(headers)
        return not asked or any(source in known for source in asked)

    def _known(self, headers: Headers) -> Sequence[Source]:
        """Those that have the request's key; all are asked, whichever has it."""
        token = bearer(headers)
        return [] if token is None else [source for source in self._sources if source.keys.has(token)]


def challenge(error: GatewayError) -> list[tuple[bytes, bytes]]:
    """What a reply that tells of ``error`` must say beside the status."""
    return [(b"www-authenticate", b"Bearer")] if isinstance(error, Unauthorized) else []


def _what_is_wrong(headers: Headers) -> str:
    if bearer(headers) is None:
        return "a key is needed here, as the header 'Authorization: Bearer <key>'"
    return "the key is not valid here"
