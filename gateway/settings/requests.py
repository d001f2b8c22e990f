"""Settings: requests and replies.

Owns: what is made of a request and of its reply, options of single formats among it. Must never enter: which
formats there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import field_validator

from gateway.settings.fields import Choice, Section, setting


class Requests(Section):
    """Requests and replies."""

    generate_format: str = setting(
        "DYN_GENERATE_FORMAT", "sglang", "Name of the format that serves /generate", min_length=1
    )
    sglang_stream_mode: Choice[Literal["engine", "incremental", "cumulative"]] = setting(
        "DYN_SGLANG_STREAM_MODE",
        "engine",
        "What SGLang's stream events hold, whatever the workers' own flag: engine (as they send it), "
        "incremental (what is new), cumulative (all so far)",
    )
    passthrough_engine_errors: bool = setting(
        "DYN_PASSTHROUGH_ENGINE_ERRORS",
        False,
        "Pass errors of 500 and over as an engine sent them; else the paths of its files are cut from them, "
        "be it the body of a reply or an event of a stream",
    )
    vocab_size: int | None = setting(
        "DYN_VOCAB_SIZE",
        None,
        "Number of tokens in the vocabulary of the fleet's model: requests with ids outside of it are "
        "refused, as they kill engines, and no engine tells its size; unset: not checked",
        ge=1,
    )
    poison_window_seconds: float = setting(
        "DYN_POISON_WINDOW_SECONDS",
        60.0,
        "A request is refused once two workers died within so many seconds while they ran it; 0: never",
        ge=0,
    )
    sse_keep_alive_interval_ms: int | None = setting(
        "DYN_HTTP_SSE_KEEP_ALIVE_INTERVAL_MS",
        None,
        "Silence in a stream after which a comment is sent to the client, in milliseconds; 0 or unset: never",
        ge=1,
    )

    @field_validator("sse_keep_alive_interval_ms", mode="before")
    @classmethod
    def _zero_is_off(cls, value: object) -> object:
        return None if value in (0, "0") else value

    @property
    def format_options(self) -> Mapping[str, str]:
        """Settings of single formats, by field name, as text; those at their default are left out."""
        options = {
            name: getattr(self, name)
            for name in ("sglang_stream_mode", "passthrough_engine_errors", "vocab_size")
            if getattr(self, name) != type(self).model_fields[name].default
        }
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in options.items()
        }
