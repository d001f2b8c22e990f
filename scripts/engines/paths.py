"""The folders of the engines: installations outside the work tree, so that a fresh clone finds them; runs
inside it.

Owns: folders. Must never enter: their contents.
"""

from __future__ import annotations

import os
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def cache_root() -> Path:
    """Return the folder of environments and model, created on demand."""
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
    """Return the folder of logs and records of the servers that this checkout started."""
    folder = ROOT / "build" / "engines"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
