"""Mapping the engine's id back to the client's."""

from __future__ import annotations

import pytest

from gateway.formats.contract import Ids
from gateway.formats.optional import AbortTarget, EngineId
from gateway.formats.vllm.ids import RequestIdMapper, abort_target, engine_id, engine_ids_at
from tests.formats.support import PRIVATE, pieces

ENGINE = engine_id(PRIVATE.dispatch[0]).encode()


@pytest.mark.parametrize("id", ["a", "0", "-0", "a-0", "chatcmpl-a", "cmpl-0", "generate-tokens-a", "a\n"])
@pytest.mark.parametrize("one_prompt", [True, False])
@pytest.mark.parametrize(
    ("path", "parts"), [("/v1/chat/completions", ()), ("/v1/completions", (0,)), ("/v1/completions", (12,))]
)
def test_spelling_of_other_routes_means_their_requests_alone(
    id: str, one_prompt: bool, path: str, parts: tuple[int, ...]
) -> None:
    ids = Ids((id,), (id,), parts)
    if one_prompt and 12 in parts:
        assert engine_ids_at(path, ids, one_prompt=one_prompt) == []
        return
    (name,) = engine_ids_at(path, ids, one_prompt=one_prompt)
    assert abort_target([name]) == AbortTarget(engine_ids=(EngineId(id, path, parts[0] if parts else None),))


def test_spelling_that_is_not_known_is_none() -> None:
    ids = Ids(("a",), ("a",))
    assert engine_ids_at("/v1/embeddings", ids, one_prompt=True) == []
    assert engine_ids_at("/v1/chat/completions", ids._replace(parts=(0,)), one_prompt=True) == []
    assert engine_ids_at("/v1/completions", ids, one_prompt=False) == []  # as many as there are prompts
    assert engine_ids_at("/v1/completions", ids, one_prompt=True) == ["cmpl-a-0"]


def test_other_members_with_the_id_are_left_alone() -> None:
    """Connector data names the engine's id to the next engine; changing it would break the transfer."""
    params = b'"kv_transfer_params":{"remote_request_id":"%b","x":["%b"]}' % (ENGINE, ENGINE)
    body = b'{"request_id":"%b",%b}' % (ENGINE, params)
    assert RequestIdMapper(PRIVATE).map(body) == b'{"request_id":"generate-tokens-job-1",%b}' % params
    other = b'{"request_id":"%b-1","a":{"request_id": "other"},"b":"%b"}' % (ENGINE, ENGINE)
    assert RequestIdMapper(PRIVATE).map(other) == other


def test_string_without_an_end_does_not_continue_in_the_next_line() -> None:
    """Events are mapped alike, whether a malformed one came in the same read or not."""
    broken, event = b'data: {"request_id": "gen: null}\n\n', b'data: {"request_id": "%b"}\n\n' % ENGINE
    mapper = RequestIdMapper(PRIVATE)
    assert mapper.map(broken + event) == broken + mapper.map(event)
    assert mapper.map(event) != event


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("blanks", [b"", b"  ", b"\n\t "])
@pytest.mark.parametrize("before", [0, 1, 70, 500])
def test_pieces_are_mapped_wherever_they_are_cut(seed: int | None, blanks: bytes, before: int) -> None:
    body = b'{"a":"%b","request_id"%b:%b"%b","b":"%b"}' % (b"x" * before, blanks, blanks, ENGINE, b"y" * 300)
    mapper = RequestIdMapper(PRIVATE)
    out = b"".join(mapper.feed(part) for part in pieces(body, seed)) + mapper.flush()
    assert out == RequestIdMapper(PRIVATE).map(body) == body.replace(ENGINE, b"generate-tokens-job-1")
