"""Settings: listening.

Owns: where clients come in, how many at a time and with how much, and how the gateway leaves them. Must never
enter: who may come in.
"""

from __future__ import annotations

from gateway.settings.fields import Section, setting

MEGABYTE = 1024 * 1024


class Listening(Section):
    """Listening."""

    host: str = setting("DYN_HTTP_HOST", "0.0.0.0", "Address to listen on", min_length=1)
    port: int = setting("DYN_HTTP_PORT", 8000, "Port to listen on; 0 takes a free one", ge=0, le=65535)
    processes: int = setting(
        "DYN_HTTP_PROCESSES",
        1,
        "Processes that serve the port together, for hosts where one core is not enough",
        ge=1,
        le=256,
    )
    listen_backlog: int = setting(
        "DYN_HTTP_LISTEN_BACKLOG", 4096, "Connections that may wait to be accepted", ge=1, le=2**31 - 1
    )
    body_limit_mb: int = setting(
        "DYN_HTTP_BODY_LIMIT_MB", 512, "Largest request body, in MiB; a larger one is a 413", ge=1
    )
    graceful_shutdown_timeout_secs: float = setting(
        "DYN_HTTP_GRACEFUL_SHUTDOWN_TIMEOUT_SECS",
        180.0,
        "How long running requests may go on after SIGTERM, in seconds; a second signal ends them at once",
        ge=0,
    )

    drain_delay_secs: float = setting(
        "DYN_HTTP_DRAIN_DELAY_SECS",
        0.0,
        "How long new requests are still taken after SIGTERM, when it is not ready any more, in seconds",
        ge=0,
    )

    @property
    def body_limit(self) -> int:
        """Largest request body, in bytes."""
        return self.body_limit_mb * MEGABYTE
