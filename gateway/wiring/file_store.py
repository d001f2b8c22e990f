"""The file of workers that the settings name.

Owns: that. Must never enter: what is in it.
"""

from __future__ import annotations

from pathlib import Path

from gateway.settings import Settings
from gateway.stores.file.store import FileStore


def file_store(settings: Settings) -> FileStore:
    """Raises ValueError without a file, which Settings makes sure of."""
    if settings.discovery_file is None:
        raise ValueError("no file of workers")
    return FileStore(Path(settings.discovery_file))
