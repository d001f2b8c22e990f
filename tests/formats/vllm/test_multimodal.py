"""Images are distinguished for routing only if every rule holds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.formats.routing_hints import ImageSpan
from gateway.formats.vllm import FORMAT
from gateway.formats.vllm.multimodal import identity_of

A, B = "ab" * 32, "0123456789ABCDEF" + "0" * 48
IDS = {A: 0xABABABABABABABAB, B: 0x0123456789ABCDEF}
#: The image token.
X = 900


def place(offset: int, length: int, mask: list[bool] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"offset": offset, "length": length}
    return found if mask is None else {**found, "is_embed": mask}


def features(hashes: list[str], places: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    found = {"mm_hashes": hashes, "mm_placeholders": places, "kwargs_data": ["aGk="] * len(hashes)}
    return {name: {"image": value} for name, value in found.items()} | more


def spans(
    token_ids: list[Any], found: Any, block_size: int = 4, *, tower_lora: bool = False
) -> list[tuple[int, int, int]] | None:
    body = json.dumps({"token_ids": token_ids, "sampling_params": {}, "features": found}).encode()
    images = FORMAT.project(FORMAT.parse(body, ())).hints().images
    assert images is not None
    result = images(block_size, tower_lora=tower_lora)
    return None if result is None else [(span.offset, span.length, span.identity) for span in result]


def test_images_stand_where_their_placeholders_are() -> None:
    prompt = [1, X, X, X, 2, 3, X, X]
    assert spans(prompt, features([A, B], [place(1, 3), place(6, 2)])) == [(1, 3, IDS[A]), (6, 2, IDS[B])]


def test_image_is_identified_by_its_hash() -> None:
    """A SHA-256 by its first 16 digits, whatever their case; any other name by a digest of 64 bits."""
    assert [identity_of(name) for name in (A, B)] == [IDS[A], IDS[B]]
    assert identity_of("cat.png") == 0x2ED4C03704B71E4F
    names = ["cat.png", "dog.png", "ab" * 31, "ab" * 33, "zz" * 32, "\u65e5"]
    found = {identity_of(name) for name in names}
    assert len(found) == len(names) and all(0 <= one < 2**64 for one in found)
    assert spans([X], features(["cat.png"], [place(0, 1)])) == [(0, 1, identity_of("cat.png"))]


def test_mask_tells_which_tokens_are_the_images() -> None:
    """A range may contain other tokens; each span between them is returned."""
    prompt = [X, X, 7, X, 1, 1, 1, 1]
    found = features([A], [place(0, 4, [True, True, False, True])])
    assert spans(prompt, found) == [(0, 2, IDS[A]), (3, 1, IDS[A])]
    assert spans([X] * 4, features([A], [place(0, 4, [True] * 4)])) == [(0, 4, IDS[A])]


def test_kwargs_may_be_at_the_worker_already() -> None:
    """One entry that is null, or all of them, as the worker has them in its cache."""
    for kwargs in (None, {"image": [None]}):
        found = features([A], [place(0, 1)], kwargs_data=kwargs)
        assert spans([X], found) == [(0, 1, IDS[A])]
    assert spans([X], features([A], [place(0, 1)], mm_metadata={"image": [None]})) == [(0, 1, IDS[A])]


def test_same_image_twice_in_a_row_has_two_spans() -> None:
    """Neighbours cannot be distinguished, and need not be if they are one image."""
    assert spans([X] * 4, features([A, A], [place(0, 2), place(2, 2)])) == [(0, 2, IDS[A]), (2, 2, IDS[A])]
    assert spans([X] * 4, features([A, B], [place(0, 2), place(2, 2)])) is None


NO_PLACES: list[Any] = [None, {"image": [place(1, 2)], "video": []}]
NO_KWARGS: list[Any] = [[], {"image": ["aGk="], "audio": []}, {"image": []}]
NO_HASHES: list[Any] = [None, {}, {"image": [A], "audio": []}, {"image": A}]
ONE = features([A], [place(1, 2)])
PROMPT = [1, X, X, 2]


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"x": float("nan")},
        {"mm_hashes": {}},
        7,
        *({**ONE, "mm_hashes": odd} for odd in NO_HASHES),
        *({**ONE, "mm_hashes": {"image": odd}} for odd in ([], [A, B], [7], [""])),
        *({**ONE, "mm_placeholders": odd} for odd in NO_PLACES),
        *({**ONE, "kwargs_data": odd} for odd in NO_KWARGS),
        {**ONE, "mm_metadata": {"audio": []}},
        features([], []),
        *(features([A], [place(*odd)]) for odd in ((-1, 2), (1, 0), (3, 2), (0, 2), (1, 1))),
        *(features([A], [odd]) for odd in ({"offset": 1}, {"offset": "1", "length": 2})),
        features([A], [{"offset": True, "length": 2}]),
        features([A, B], [place(2, 1), place(1, 1)]),
        features([A, B], [place(1, 2), place(2, 1)]),
        features([A], [place(1, 2, [True])]),
        features([A], [{**place(1, 2), "is_embed": [1, 1]}]),
        features([A], [place(1, 2, [False, False])]),
        features([A], [place(0, 3, [True, True, True])]),
    ],
)
def test_broken_rule_means_routing_by_ids_alone(found: Any) -> None:
    """Never an error: the request is the engine's to judge."""
    assert spans(PROMPT, ONE) == [(1, 2, IDS[A])]
    assert spans(PROMPT, found) is None


@pytest.mark.parametrize(
    ("prompt", "found", "worker"),
    [
        ([1, X, X, X], ONE, {}),
        ([X, X, X, 2], ONE, {}),
        ([X, 1, X + 1], features([A, B], [place(0, 1), place(2, 1)]), {}),
        (PROMPT, ONE, {"block_size": 0}),
        (PROMPT, ONE, {"tower_lora": True}),
    ],
)
def test_prompt_or_worker_may_break_a_rule_as_well(
    prompt: list[int], found: Any, worker: dict[str, Any]
) -> None:
    """All images have one token, found nowhere else; the worker has blocks and no adapter of its encoder."""
    assert spans(prompt, found, **worker) is None


def test_mask_that_a_worker_would_read_otherwise_breaks_the_rule() -> None:
    """In a block of several images, a second run of the first would be read as the next image."""
    prompt = [X, 7, X, 8, X, 1, 1, 1]
    found = features([A, B], [place(0, 3, [True, False, True]), place(4, 1)])
    assert spans(prompt, found, 8) is None
    assert spans(prompt, found, 4) == [(0, 1, IDS[A]), (2, 1, IDS[A]), (4, 1, IDS[B])]
    alone = features([A], [place(0, 5, [True, False, True, False, True])])
    assert spans(prompt, alone, 8) == [(0, 1, IDS[A]), (2, 1, IDS[A]), (4, 1, IDS[A])]


def test_prompt_the_engine_would_convert_is_read() -> None:
    """Ids spelled as text are ids, and a prompt that the engine would refuse has no images."""
    assert spans(["1", str(X), float(X), 2], ONE) == [(1, 2, IDS[A])]
    assert spans([1, X, X, None], ONE) is None


PLACES = st.fixed_dictionaries(
    {"offset": st.integers(-1, 8), "length": st.integers(-1, 5)},
    optional={"is_embed": st.none() | st.lists(st.booleans(), max_size=5)},
)


@given(
    st.lists(st.sampled_from([1, X]), max_size=10),
    st.lists(st.sampled_from([A, B, "x", ""]), max_size=3),
    st.lists(PLACES, max_size=3),
    st.integers(0, 6),
)
def test_spans_cover_the_image_tokens_and_no_others(
    prompt: list[int], hashes: list[str], places: list[dict[str, Any]], size: int
) -> None:
    found = spans(prompt, features(hashes, places), size)
    if found is not None:
        covered = [at for offset, length, _ in found for at in range(offset, offset + length)]
        assert covered == [at for at, token in enumerate(prompt) if token == X] or covered == [
            at for at, token in enumerate(prompt) if token == 1
        ]
        assert all(ImageSpan(*one).identity < 2**64 for one in found)
