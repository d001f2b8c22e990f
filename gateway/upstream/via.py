"""The gateway's own entry in ``Via``, by which it recognises a request that it has sent itself.

Owns: the entry and its recognition. Must never enter: what follows from a loop. Source: RFC 9110, section
7.6.3.
"""

from __future__ import annotations

import secrets
from typing import Final

from gateway.formats.contract import Headers

#: The message of the error for a request that has passed through this gateway before.
LOOPED = "this request has passed through this gateway before: a worker leads back to it"


class Via:
    """The entry of one gateway; all of its processes share it, and no other gateway has the same."""

    def __init__(self) -> None:
        self._name: Final = b"tito-gateway-" + secrets.token_hex(8).encode()
        #: The header line for every request to a worker.
        self.line: Final = b"via: 1.1 %b\r\n" % self._name

    def passed(self, headers: Headers) -> bool:
        """Return True if a request with these headers has passed through this gateway before."""
        return any(name == b"via" and self._name in value for name, value in headers)
