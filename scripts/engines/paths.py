"""Where things are: engines outside the work tree, so that a fresh clone finds them; what runs, inside it.

Owns: folders. Must never enter: what lies in them.
"""

from __future__ import annotations

import os
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def cache_root() -> Path:
    """The folder that holds environments and model; created on demand."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    root = Path(base) / "tito-gateway" / "engines"
    root.mkdir(parents=True, exist_ok=True)
    return root


def environment(engine: str) -> Path:
    return cache_root() / engine


def interpreter(engine: str) -> Path:
    return environment(engine) / "bin" / "python"


def model() -> Path:
    return cache_root() / "tiny-model"


def runs() -> Path:
    """Logs and records of the servers that this checkout started."""
    folder = ROOT / "build" / "engines"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
