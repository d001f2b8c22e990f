"""Cross-origin requests of browsers (CORS).

Owns: which origins may read replies, and the header lines that allow it. Must never enter: keys, routes.
Source: the Fetch standard, section 3.2. Credentials, such as cookies, are never allowed: keys are sent by the
script of the page.
"""

from __future__ import annotations

from collections.abc import Collection

from gateway.downstream import encode
from gateway.formats.contract import Headers, header

ANY = b"*"
#: Seconds for which a browser may remember the reply to a preflight; browsers allow two hours at most.
PREFLIGHT_SECONDS = b"7200"


class CrossOrigin:
    """The origins that may read replies; ANY among them: all."""

    def __init__(self, origins: Collection[bytes]) -> None:
        self._origins = frozenset(origins)
        self._any = ANY in self._origins

    def lines(self, headers: Headers) -> bytes:
        """Return the encoded header lines for the reply to a request with ``headers``."""
        return encode.lines(self._allowing(headers))

    def preflight(self, headers: Headers) -> Headers | None:
        """Return the headers of the reply to an OPTIONS request; None: it is no preflight."""
        method = header(headers, b"access-control-request-method")
        if method is None or header(headers, b"origin") is None:
            return None
        lines = [(b"access-control-allow-methods", method), (b"access-control-max-age", PREFLIGHT_SECONDS)]
        wanted = header(headers, b"access-control-request-headers")
        if wanted is not None:
            lines.append((b"access-control-allow-headers", wanted))
        return [*lines, (b"vary", b"access-control-request-method, access-control-request-headers")]

    def _allowing(self, headers: Headers) -> Headers:
        exposed = (b"access-control-expose-headers", ANY)
        if self._any:
            return [(b"access-control-allow-origin", ANY), exposed]
        origin = header(headers, b"origin")
        varies = (b"vary", b"origin")
        if origin is None or origin.lower() not in self._origins:
            return [varies]
        return [(b"access-control-allow-origin", origin), exposed, varies]
