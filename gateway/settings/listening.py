"""Settings: listening.

Owns: where clients connect, the size of a request, and how the gateway shuts down. Must never enter: keys.
"""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import field_validator

from gateway.settings.fields import Listed, Placeholder, Section, setting

MEGABYTE = 1024 * 1024
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^\s/?#@,*]+")


class Listening(Section):
    """Listening."""

    host: str = setting("DYN_HTTP_HOST", "0.0.0.0", "Address to listen on", min_length=1)
    port: int = setting("DYN_HTTP_PORT", 8000, "Port to listen on; 0: any free port", ge=0, le=65535)
    processes: int = setting(
        "DYN_HTTP_PROCESSES",
        1,
        "Number of processes that serve the port together, if one core is not enough",
        ge=1,
        le=256,
    )
    listen_backlog: int = setting(
        "DYN_HTTP_LISTEN_BACKLOG", 4096, "Most connections that wait to be accepted", ge=1, le=2**31 - 1
    )
    body_limit_mb: int = setting(
        "DYN_HTTP_BODY_LIMIT_MB", 512, "Largest request body, in MiB; a larger one gets status 413", ge=1
    )
    graceful_shutdown_timeout_secs: float = setting(
        "DYN_HTTP_GRACEFUL_SHUTDOWN_TIMEOUT_SECS",
        180.0,
        "Time for running requests to end after SIGTERM, in seconds; a second signal ends them immediately",
        ge=0,
    )

    drain_delay_secs: float = setting(
        "DYN_HTTP_DRAIN_DELAY_SECS",
        0.0,
        "Time that new requests are still accepted after SIGTERM, while /ready already fails, in seconds",
        ge=0,
    )

    cors_origin: Annotated[Listed, Placeholder("ORIGIN")] = setting(
        "DYN_HTTP_CORS_ORIGINS",
        (),
        "Origin whose pages may read replies in a browser, such as https://chat.example.org, or * for all; "
        "repeat the flag or separate by commas; unset: none",
    )

    @field_validator("cors_origin")
    @classmethod
    def _are_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        lowered = tuple(origin.lower() for origin in origins)
        for origin in lowered:
            if not origin.isascii() or _ORIGIN.fullmatch(origin) is None:
                raise ValueError(f"{origin!r} must be * or SCHEME://HOST[:PORT], without a path")
        return lowered

    @property
    def body_limit(self) -> int:
        """The largest request body, in bytes."""
        return self.body_limit_mb * MEGABYTE
