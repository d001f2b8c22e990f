"""Routing hints: facts of a request that only a routing policy may need.

Owns: the records for priorities, adapters, cache salts and image positions. Must never enter: a dialect,
I/O, a policy. No policy of the gateway reads them yet; they are for routing by cached prefixes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Hints:
    """Routing hints of one request.

    ``priority`` has the same sign for all engines: larger is more urgent, 0 is the default. ``lora`` is the
    name of an adapter. ``cache_salt`` identifies the tenant whose cached prefixes may be shared. ``dp_rank``
    is a data-parallel rank. ``token_ids`` computes the prompt's token ids at each call; for a batch, those of
    the first prompt. ``images`` is None for a prompt without images.
    """

    priority: int = 0
    lora: str | None = None
    cache_salt: str | None = None
    dp_rank: int | None = None
    token_ids: Callable[[], Sequence[int]] | None = None
    images: Images | None = None


class Images(Protocol):
    """Finds the image tokens of a prompt."""

    def __call__(self, block_size: int = 16, *, tower_lora: bool = False) -> Sequence[ImageSpan] | None:
        """Return the spans in the order of the prompt, or None if they cannot be identified with certainty.

        ``block_size`` is the number of tokens in a block of the worker's cache. ``tower_lora`` is True if the
        worker's adapter for this request changes how images are encoded.
        """
        ...


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """Consecutive image tokens in a prompt; ``identity`` (64 bits) differs between different images."""

    offset: int
    length: int
    identity: int
