"""The events of the engine's KV cache, as its HTTP interface gives them.

Owns: the request that drains them, and the typed events in a reply. Must never enter: sending the request,
an index of blocks, which worker an event is of.

Each event is given once: two readers of one engine see half of the events each, so a worker must have one
reader. The engine has events only with ``event_buffer_max_size`` in its ``kv_cache_config``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

import msgspec

from gateway.formats.worker_contract import ProbeReply, ProbeRequest

EVENTS = ProbeRequest("POST", "/kv_cache_events", once=True)


class _Token(msgspec.Struct, gc=False):
    #: A text for an item that is no text, such as an image.
    token_id: int | str
    token_extra_id: int = 0


class Block(msgspec.Struct, frozen=True, gc=False):
    """A block that was stored: its hash, and its tokens, the last block of a prompt may have fewer of them.

    ``level`` is 0 for the memory of the GPU, above for others.
    """

    block_hash: int
    tokens: list[_Token]
    cache_level: int = 0

    @property
    def token_ids(self) -> list[int] | None:
        """The ids of its tokens, None if some stand for something else than a text."""
        ids = [token.token_id for token in self.tokens if not token.token_extra_id]
        texts = [id for id in ids if isinstance(id, int)]
        return texts if len(texts) == len(self.tokens) else None


class Created(msgspec.Struct, frozen=True, tag="created", gc=False):
    """The cache was made, with so many blocks at each level."""

    num_blocks_per_cache_level: list[int]


class Stored(msgspec.Struct, frozen=True, tag="stored", gc=False):
    """Consecutive blocks were stored after the block ``parent_hash``, None: at the start of a prompt."""

    blocks: list[Block]
    parent_hash: int | None = None


class Removed(msgspec.Struct, frozen=True, tag="removed", gc=False):
    block_hashes: list[int]


class Updated(msgspec.Struct, frozen=True, tag="updated", gc=False):
    """A block has another level or priority."""

    block_hash: int


class KvEvent(msgspec.Struct, frozen=True, gc=False):
    """One event. ``window_size`` is that of the attention whose blocks it is about, in tokens.

    ``attention_dp_rank`` is the data-parallel rank, None for an engine without attention data parallelism.
    ``event_id`` counts from 0; a gap means that events were lost.
    """

    event_id: int
    data: Created | Stored | Removed | Updated
    window_size: int | None = None
    attention_dp_rank: int | None = None


_EVENTS = msgspec.json.Decoder(list[msgspec.Raw])
_EVENT = msgspec.json.Decoder(KvEvent)


def read_events(reply: ProbeReply) -> list[KvEvent] | None:
    """Return the events in the reply to ``EVENTS``, None if it is not a list of events.

    One of an unknown kind is left out, which shows as a gap in ``event_id``.
    """
    if reply.status != 200:
        return None
    try:
        listed = _EVENTS.decode(reply.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    events = []
    for each in listed:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            events.append(_EVENT.decode(each))
    return events


class BlockEvents:
    """The events of one engine that tell which blocks of whole prompts it has.

    It leaves out those of smaller attention windows, whose blocks are part of a prompt's tokens only, and
    blocks with fewer than ``block_size`` tokens, which nothing can follow; so it does their removal.
    """

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._window = 0
        self._partial: dict[int | None, set[int]] = {}

    def of(self, events: Iterable[KvEvent]) -> Sequence[KvEvent]:
        """Return those of ``events`` that remain, in order."""
        found = []
        for event in events:
            if event.window_size is not None and isinstance(event.data, Created):
                self._window = max(self._window, event.window_size)
            if event.window_size is None or event.window_size >= self._window:
                kept = self._kept(event)
                if kept is not None:
                    found.append(kept)
        return found

    def _kept(self, event: KvEvent) -> KvEvent | None:
        partial = self._partial.setdefault(event.attention_dp_rank, set())
        data: Stored | Removed
        if isinstance(event.data, Stored):
            full = [block for block in event.data.blocks if len(block.tokens) == self._block_size]
            partial.update(
                block.block_hash for block in event.data.blocks if len(block.tokens) != self._block_size
            )
            if not full:
                return None
            data = msgspec.structs.replace(event.data, blocks=full)
        elif isinstance(event.data, Removed):
            hashes = [block for block in event.data.block_hashes if block not in partial]
            partial.difference_update(event.data.block_hashes)
            if not hashes:
                return None
            data = Removed(hashes)
        else:
            return None
        return msgspec.structs.replace(event, data=data)
