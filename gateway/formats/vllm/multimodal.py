"""The positions of a prompt's images in its token ids, so that a router can include them in block hashes.

Owns: the rules that must all hold before an image token may stand for its image. Must never enter: refusing a
request: if a rule is violated the prompt is routed by its ids alone, and the engine judges it.

The rules are those of other routers in front of this engine, except for one digest: an image is identified by
64 bits of the hash that its client gave, or of that name's BLAKE2b unless it is a SHA-256 in hexadecimal.
Such an identity means the same in every gateway, and nothing outside of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from gateway.formats.routing_hints import ImageSpan

#: The only kind of input that is fully described by its position in a prompt.
MODALITY = "image"

_SHA256 = re.compile(r"[0-9a-fA-F]{64}")


class _Range(msgspec.Struct, gc=False):
    offset: int
    length: int
    is_embed: list[bool] | None = None


class _Features(msgspec.Struct, gc=False):
    mm_hashes: dict[str, list[str]]
    mm_placeholders: dict[str, list[_Range]]
    kwargs_data: dict[str, list[msgspec.Raw]] | None = None
    mm_metadata: dict[str, list[msgspec.Raw]] | None = None


_FEATURES = msgspec.json.Decoder(_Features)


@dataclass(frozen=True, slots=True)
class _Image:
    """One image: its range, and the positions in it that its embedding fills."""

    start: int
    end: int
    identity: int
    positions: Sequence[int]


class _RuleViolated(Exception):
    """A rule is violated."""


def image_spans(
    token_ids: Sequence[int], features: msgspec.Raw | bytes, block_size: int, *, tower_lora: bool
) -> tuple[ImageSpan, ...] | None:
    """Return the spans of image tokens, in order, each with its image's identity; None if a rule is violated.

    ``features`` is the field of that name as JSON, ``block_size`` the block size of the worker's cache, in
    tokens. ``tower_lora``: the request's adapter also changes how images are encoded, so that an image is not
    the same with it and without.
    """
    if tower_lora or block_size <= 0:
        return None
    try:
        images = _images(token_ids, _FEATURES.decode(features))
        token = _image_token(token_ids, images)
        _check_blocks(token_ids, token, images, block_size)
    except (_RuleViolated, msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return tuple(span for image in images for span in _stretches(image))


def identity_of(name: str) -> int:
    """Return 64 bits that distinguish one image from another."""
    if _SHA256.fullmatch(name):
        return int(name[:16], 16)
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big")


def _images(token_ids: Sequence[int], features: _Features) -> list[_Image]:
    """Return the images in the order of their ranges, which neither overlap nor leave the prompt."""
    maps = (features.mm_hashes, features.mm_placeholders, features.kwargs_data, features.mm_metadata)
    if any(found.keys() != {MODALITY} for found in maps if found is not None):
        raise _RuleViolated
    if len({len(found[MODALITY]) for found in maps if found is not None}) != 1:
        raise _RuleViolated
    pairs = zip(features.mm_placeholders[MODALITY], features.mm_hashes[MODALITY], strict=True)
    images = [_image(token_ids, position, name) for position, name in pairs]
    for first, second in zip(images, images[1:], strict=False):
        if first.end > second.start or (first.end == second.start and first.identity != second.identity):
            raise _RuleViolated
    return images


def _image(token_ids: Sequence[int], position: _Range, name: str) -> _Image:
    start, end = position.offset, position.offset + position.length
    if start < 0 or position.length < 1 or end > len(token_ids) or not name:
        raise _RuleViolated
    mask = position.is_embed
    if mask is None:
        if len(set(token_ids[start:end])) != 1:
            raise _RuleViolated
        return _Image(start, end, identity_of(name), range(start, end))
    if len(mask) != position.length:
        raise _RuleViolated
    return _Image(start, end, identity_of(name), [start + at for at, on in enumerate(mask) if on])


def _image_token(token_ids: Sequence[int], images: list[_Image]) -> int:
    """Return the one id that stands at every position of every image, and nowhere else in the prompt."""
    positions = [position for image in images for position in image.positions]
    tokens = {token_ids[position] for position in positions}
    if len(tokens) != 1:
        raise _RuleViolated
    (token,) = tokens
    if token_ids.count(token) != len(positions):
        raise _RuleViolated
    return token


def _check_blocks(token_ids: Sequence[int], token: int, images: list[_Image], size: int) -> None:
    """Check that a worker which knows only the ordered images of each block would find the same ones.

    It gives each run of image tokens the next image of the block, and the last image to the remaining runs.
    """
    identities = {position: image.identity for image in images for position in image.positions}
    for block in sorted({position // size for position in identities}):
        start, end = block * size, min((block + 1) * size, len(token_ids))
        present = [image.identity for image in images if image.start < end and image.end > start]
        for number, run in enumerate(_runs([at for at in range(start, end) if token_ids[at] == token])):
            found = present[min(number, len(present) - 1)]
            if any(identities[position] != found for position in run):
                raise _RuleViolated


def _stretches(image: _Image) -> Iterator[ImageSpan]:
    for run in _runs(image.positions):
        yield ImageSpan(run[0], len(run), image.identity)


def _runs(positions: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield the runs of consecutive numbers in ``positions``, which increase."""
    start = 0
    for at in range(1, len(positions) + 1):
        if at == len(positions) or positions[at] != positions[at - 1] + 1:
            yield positions[start:at]
            start = at
