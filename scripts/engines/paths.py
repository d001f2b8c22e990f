"""Where the engines live on this machine: outside the work tree, so that a fresh clone finds them again."""

from __future__ import annotations

import os
from pathlib import Path

HERE = Path(__file__).resolve().parent


def cache_root() -> Path:
    """The folder that holds environments, model, logs and records; created on demand."""
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
    """Logs and records of servers."""
    folder = cache_root() / "run"
    folder.mkdir(exist_ok=True)
    return folder
