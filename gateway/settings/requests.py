"""Settings: requests and replies.

Owns: how requests and replies are treated, including the options of single formats. Must never enter: the
list of formats.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import field_validator

from gateway.settings.fields import Choice, Listed, Placeholder, Section, is_path, setting

_OF_FORMATS = ("sglang_stream_mode", "passthrough_engine_errors", "vocab_size", "event_limit_mb")


class Requests(Section):
    """Requests and replies."""

    generate_format: str = setting(
        "DYN_GENERATE_FORMAT", "sglang", "Name of the format that serves /generate", min_length=1
    )
    endpoint: Annotated[Listed, Placeholder("[PATH=]FORMAT")] = setting(
        "DYN_ENDPOINTS",
        (),
        "One more endpoint: PATH=FORMAT, or FORMAT for its default path; repeat the flag or separate by "
        "commas",
    )
    sglang_stream_mode: Choice[Literal["engine", "incremental", "cumulative"]] = setting(
        "DYN_SGLANG_STREAM_MODE",
        "engine",
        "What SGLang's stream events hold, whatever the workers' own flag: engine (as they send it), "
        "incremental (the new tokens), cumulative (all tokens so far)",
    )
    passthrough_engine_errors: bool = setting(
        "DYN_PASSTHROUGH_ENGINE_ERRORS",
        False,
        "Relay errors of status 500 and above as an engine sent them; otherwise file paths are removed from "
        "them, in reply bodies and in events of streams",
    )
    vocab_size: int | None = setting(
        "DYN_VOCAB_SIZE",
        None,
        "Number of tokens in the vocabulary of the fleet's model: requests with other token ids are refused, "
        "because they crash engines; unset: the number that is known of a worker",
        ge=1,
    )
    poison_window_seconds: float = setting(
        "DYN_POISON_WINDOW_SECONDS",
        60.0,
        "A request is refused once two workers died within this many seconds while they ran it; 0: never",
        ge=0,
    )
    sse_keep_alive_interval_ms: int | None = setting(
        "DYN_HTTP_SSE_KEEP_ALIVE_INTERVAL_MS",
        None,
        "Time without an event in a stream after which a comment is sent, in milliseconds; 0 or unset: never",
        ge=1,
    )

    event_limit_mb: int = setting(
        "DYN_EVENT_LIMIT_MB",
        64,
        "Largest event of a worker's stream, in MiB; with a larger one the reply fails",
        ge=1,
    )

    @field_validator("endpoint")
    @classmethod
    def _are_endpoints(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        seen: set[str] = set()
        for entry in entries:
            path, format = _endpoint(entry)
            if path is not None and not is_path(path):
                raise ValueError(f"{entry!r}: the path must start with '/' and be a plain path")
            if not format:
                raise ValueError(f"{entry!r}: the format is missing, write PATH=FORMAT")
            if (key := path or format) in seen:
                raise ValueError(f"{key!r} is given twice")
            seen.add(key)
        return entries

    @field_validator("sse_keep_alive_interval_ms", mode="before")
    @classmethod
    def _zero_is_off(cls, value: object) -> object:
        return None if value in (0, "0") else value

    @property
    def endpoints(self) -> Sequence[tuple[str | None, str]]:
        """Path and format of each entry of ``endpoint``; None: the default path of the format."""
        return [_endpoint(entry) for entry in self.endpoint]

    @property
    def format_options(self) -> Mapping[str, str]:
        """The options of single formats as text, by field name, without those at their default."""
        options = {
            name: getattr(self, name)
            for name in _OF_FORMATS
            if getattr(self, name) != type(self).model_fields[name].default
        }
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in options.items()
        }


def _endpoint(entry: str) -> tuple[str | None, str]:
    path, separator, format = entry.rpartition("=")
    if entry.startswith("/") and not separator:
        return entry, ""
    return (path if separator else None), format
