"""The options of the SGLang format.

Owns: their names, values and defaults. Must never enter: where they come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gateway.formats.options import Kind, count, flag, mebibytes, one_of, read
from gateway.formats.sglang.stream_mode import CUMULATIVE, INCREMENTAL
from gateway.formats.sse import DEFAULT_EVENT_LIMIT

ENGINE = "engine"

_KINDS: Mapping[str, Kind] = {
    "stream_mode": one_of(ENGINE, INCREMENTAL, CUMULATIVE),
    "passthrough_engine_errors": flag,
    "vocab_size": count,
    "event_limit": mebibytes,
}


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the SGLang format.

    ``stream_mode``: the mode clients get, ``engine`` for the mode of the worker.
    ``passthrough_engine_errors``: False removes file paths from an engine's messages about its own failures.
    ``vocab_size``: the number of tokens of the model; with None ids are not compared with it.
    ``event_limit``: the largest event of a stream, configured in MiB and kept in bytes.
    """

    stream_mode: str = ENGINE
    passthrough_engine_errors: bool = False
    vocab_size: int | None = None
    event_limit: int = DEFAULT_EVENT_LIMIT

    @property
    def cut_paths(self) -> bool:
        return not self.passthrough_engine_errors

    def updated(self, options: Mapping[str, str]) -> Options:
        """Return these options with the given values. Raises ValueError that names the invalid option."""
        return replace(self, **read(options, _KINDS))


DEFAULTS = Options()
