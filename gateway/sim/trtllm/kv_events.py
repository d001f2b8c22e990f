"""The KV cache events of a simulated TensorRT-LLM server.

Owns: which blocks are reported, in which records. Must never enter: the cache itself, HTTP.

Blocks are reported when they are full, and never removed.
"""

from __future__ import annotations

from collections import deque
from typing import Any
from zlib import crc32

from gateway.sim.sequence import Sequence
from gateway.sim.tokens import pack

Json = dict[str, Any]

#: The most sequences and events that wait for a reader. The oldest are forgotten, as it may never come.
LIMIT = 4096


class KvEvents:
    """The events that nobody has read yet."""

    def __init__(self, block_size: int, blocks: int, window: int) -> None:
        self._block_size = block_size
        self._window = window
        self._known: set[int] = set()
        #: Sequences whose blocks are not all reported.
        self._open: deque[Sequence] = deque(maxlen=LIMIT)
        self._next_id = 0
        created = {"type": "created", "num_blocks_per_cache_level": [blocks, 0]}
        self._unread = deque([self._event(created)], LIMIT)

    def follow(self, sequence: Sequence) -> None:
        """Report the blocks of ``sequence`` from now on."""
        self._open.append(sequence)

    def drain(self) -> list[Json]:
        """Return the unread events, which are read then."""
        for sequence in self._open:
            if sequence.chooser is not None:
                self._store([*sequence.prompt, *sequence.output])
        self._open = deque((each for each in self._open if each.finish is None), LIMIT)
        unread = list(self._unread)
        self._unread.clear()
        return unread

    def _store(self, ids: list[int]) -> None:
        """Report the full blocks of ``ids`` that were not reported yet, as one event."""
        parent: int | None = None
        first: int | None = None
        blocks: list[Json] = []
        for start in range(0, len(ids) - self._block_size + 1, self._block_size):
            block = ids[start : start + self._block_size]
            hashed = crc32(pack(block), parent or 0) + 1
            if hashed not in self._known:
                self._known.add(hashed)
                first = parent if not blocks else first
                blocks.append(_block(hashed, block))
            parent = hashed
        if blocks:
            self._unread.append(self._event({"type": "stored", "parent_hash": first, "blocks": blocks}))

    def _event(self, data: Json) -> Json:
        event = {"event_id": self._next_id, "data": data, "window_size": self._window}
        self._next_id += 1
        return event


def _block(hashed: int, ids: list[int]) -> Json:
    tokens = [{"type": "unique_token", "token_id": id, "token_extra_id": 0} for id in ids]
    return {"type": "stored_block", "block_hash": hashed, "tokens": tokens, "cache_level": 0, "priority": 35}
