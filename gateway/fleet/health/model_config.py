"""The size of a model's vocabulary, from the ``config.json`` of a model whose folder this host has, too.

Owns: reading that file, in a thread and within limits. Must never enter: a network, a dialect, what follows
from the size.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gateway.formats.worker_contract import WorkerInfo
from gateway.loop.daemon_thread import DaemonThread
from gateway.loop.files import open_regular

#: Largest file in bytes; those of known models have some KB.
SIZE_LIMIT = 1024 * 1024
#: Seconds that reading may take before no file is read any more: the file system is stuck.
TIMEOUT = 2.0

log = logging.getLogger(__name__)


def read_vocab_size(folder: str) -> int | None:
    """Return the size that the ``config.json`` in ``folder`` states; None if there is none to be read.

    May block. A model of text and images states it for the part that reads text.
    """
    try:
        with open_regular(Path(folder, "config.json")) as file:
            text = file.read(SIZE_LIMIT + 1)
        config = json.loads(text) if len(text) <= SIZE_LIMIT else None
    except (OSError, ValueError, RecursionError):
        return None
    return _size(config) or (_size(config.get("text_config")) if isinstance(config, dict) else None)


def _size(config: Any) -> int | None:
    size = config.get("vocab_size") if isinstance(config, dict) else None
    return size if type(size) is int and size > 0 else None


class ModelConfigs:
    """Reads the files of the models that workers report."""

    def __init__(self) -> None:
        self._thread = DaemonThread("model-config")
        self._stuck = False

    async def complete(self, infos: Mapping[str, WorkerInfo]) -> Mapping[str, WorkerInfo]:
        """Return ``infos`` with the sizes that no engine reports and that this host can read."""
        return {name: await self._complete(info) for name, info in infos.items()}

    def close(self) -> None:
        """End the thread."""
        self._thread.close()

    async def _complete(self, info: WorkerInfo) -> WorkerInfo:
        folder = info.model_path
        # A name of a model hub is no path; its files are in a cache that only the engine knows.
        if info.card.vocab_size is not None or folder is None or not folder.startswith("/") or self._stuck:
            return info
        try:
            async with asyncio.timeout(TIMEOUT):
                size = await self._thread.run(lambda: read_vocab_size(folder))
                return replace(info, card=replace(info.card, vocab_size=size))
        except TimeoutError:
            self._stuck = True
            log.warning("%s could not be read within %g s; no other model is read", folder, TIMEOUT)
            return info
