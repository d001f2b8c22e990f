"""The file store that the settings describe.

Owns: its path. Must never enter: the content of the file.
"""

from __future__ import annotations

from pathlib import Path

from gateway.settings import Settings
from gateway.stores.file.store import FileStore


def file_store(settings: Settings) -> FileStore:
    """Return the store. Raises ValueError without a file; Settings requires one for this store."""
    if settings.discovery_file is None:
        raise ValueError("no file of workers")
    return FileStore(Path(settings.discovery_file))
