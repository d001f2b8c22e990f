"""This format's own settings.

Owns: their names, values and defaults. Must never enter: where they come from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway.formats.sglang.stream_mode import CUMULATIVE, INCREMENTAL

ENGINE = "engine"

_VALUES: Mapping[str, Mapping[str, Any]] = {
    "stream_mode": {ENGINE: ENGINE, INCREMENTAL: INCREMENTAL, CUMULATIVE: CUMULATIVE},
    "passthrough_engine_errors": {"true": True, "false": False},
}


@dataclass(frozen=True, slots=True)
class Options:
    """``stream_mode``: what clients get, ``engine`` for whatever the worker sends.

    ``passthrough_engine_errors``: False cuts file paths from what an engine says of its own failures.
    """

    stream_mode: str = ENGINE
    passthrough_engine_errors: bool = False

    @property
    def cut_paths(self) -> bool:
        return not self.passthrough_engine_errors

    def updated(self, options: Mapping[str, str]) -> Options:
        """With these values. Raises ValueError, which names the option at fault."""
        for name, value in options.items():
            if name not in _VALUES:
                raise ValueError(f"{name}: the sglang format has no such setting")
            if value not in _VALUES[name]:
                raise ValueError(f"{name}: {value!r} is none of {', '.join(_VALUES[name])}")
        return replace(self, **{name: _VALUES[name][value] for name, value in options.items()})


DEFAULTS = Options()
