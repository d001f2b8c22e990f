"""This format's own settings.

Owns: their names, values and defaults. Must never enter: where they come from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway.formats.sglang.stream_mode import CUMULATIVE, INCREMENTAL

ENGINE = "engine"

_VOCABULARY = "vocab_size"
_COUNT = re.compile(r"[1-9][0-9]{0,17}")
_VALUES: Mapping[str, Mapping[str, Any]] = {
    "stream_mode": {ENGINE: ENGINE, INCREMENTAL: INCREMENTAL, CUMULATIVE: CUMULATIVE},
    "passthrough_engine_errors": {"true": True, "false": False},
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
        return replace(self, **{name: _value(name, value) for name, value in options.items()})


def _value(name: str, value: str) -> Any:
    if name == _VOCABULARY:
        if _COUNT.fullmatch(value) is None:
            raise ValueError(f"{name}: must be a whole number above 0, not {value!r}")
        return int(value)
    if name not in _VALUES:
        raise ValueError(f"{name}: the sglang format has no such setting")
    if value not in _VALUES[name]:
        raise ValueError(f"{name}: {value!r} is none of {', '.join(_VALUES[name])}")
    return _VALUES[name][value]


DEFAULTS = Options()
