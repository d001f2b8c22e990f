"""This format's own settings.

Owns: their names, values and defaults. Must never enter: where they come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gateway.formats.options import Kind, count, flag, one_of, read
from gateway.formats.sglang.stream_mode import CUMULATIVE, INCREMENTAL

ENGINE = "engine"

_KINDS: Mapping[str, Kind] = {
    "stream_mode": one_of(ENGINE, INCREMENTAL, CUMULATIVE),
    "passthrough_engine_errors": flag,
    "vocab_size": count,
}


@dataclass(frozen=True, slots=True)
class Options:
    """``stream_mode``: what clients get, ``engine`` for whatever the worker sends.

    ``passthrough_engine_errors``: False cuts file paths from what an engine says of its own failures.
    ``vocab_size``: number of tokens of the model, None: not known, and nothing is held against it.
    """

    stream_mode: str = ENGINE
    passthrough_engine_errors: bool = False
    vocab_size: int | None = None

    @property
    def cut_paths(self) -> bool:
        return not self.passthrough_engine_errors

    def updated(self, options: Mapping[str, str]) -> Options:
        """With these values. Raises ValueError, which names the option at fault."""
        return replace(self, **read(options, _KINDS))


DEFAULTS = Options()
