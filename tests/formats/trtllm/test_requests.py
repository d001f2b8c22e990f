"""What is read of a completions request, and what the engine gets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import ContextLength, InvalidRequest, TooLong
from gateway.formats.contract import Ids, Projection
from gateway.formats.routing_hints import Hints
from gateway.formats.trtllm import FORMAT
from tests.formats.support import View

IDS = Ids(("job",), ("private",))


def projected(body: Any, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Projection:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return FORMAT.project(FORMAT.parse(text, headers))


@pytest.mark.parametrize(
    ("prompt", "tokens", "samples", "first"),
    [
        ([1, 2, 3], 3, 1, [1, 2, 3]),
        ([[1, 2], [3]], 3, 2, [1, 2]),
        ([], 0, 1, []),
        (list(range(1000)), 1000, 1, list(range(1000))),
        ("text", None, 1, None),
        (["one", "two"], None, 2, None),
        ({"odd": 1}, None, 1, None),
    ],
)
def test_prompts_of_every_form_are_counted(
    prompt: Any, tokens: int | None, samples: int, first: list[int] | None
) -> None:
    found = projected({"model": "m", "prompt": prompt, "n": 2})
    ids = found.hints().token_ids
    assert (found.prompt_tokens, found.samples) == (tokens, 2 * samples)
    assert (None if ids is None else list(ids())) == first


@pytest.mark.parametrize(
    ("members", "longest"),
    [
        ({"prompt": [1, 2, 3]}, (3, 4)),
        ({"prompt": [1, 2, 3], "max_tokens": 5}, (3, 8)),
        ({"prompt": [1, 2, 3], "max_tokens": 0}, (3, 4)),
        ({"prompt": [[1, 2], [1, 2, 3]], "max_tokens": 5}, (3, 8)),
        ({"prompt": "text"}, (0, 0)),
        ({"prompt": [1, 2, 3], "truncate_prompt_tokens": 2}, (0, 0)),
    ],
)
def test_length_is_that_of_the_longest_prompt_with_its_reply(
    members: dict[str, Any], longest: tuple[int, int]
) -> None:
    assert projected(members).longest == longest


def test_refusal_of_a_prompt_that_is_too_long_has_its_numbers() -> None:
    for numbers, message in (
        (TooLong(8, 9, 1), "The prompt length (9) must be below max_seq_len (8)"),
        (TooLong(8, 7, 5), "The prompt length (7) and max_tokens (5) must be at most max_seq_len (8)"),
    ):
        reply = json.loads(FORMAT.render(ContextLength.of(numbers)).body)
        assert reply == {
            **{"object": "error", "message": message, "type": "BadRequestError", "param": None, "code": 400},
            **{"kind": "context_length", "limit": 8, "actual": numbers.actual},
        }


def test_what_routing_may_know_is_read() -> None:
    body = {"model": "m", "prompt": [1], "stream": True, "max_tokens": 7, "priority": 0.75}
    found = projected({**body, "lora_request": {"lora_name": "tuned"}}, ((b"x-request-id", b"job"),))
    assert (found.stream, found.model, found.max_tokens, found.ids) == (True, "m", 7, ("job",))
    hints = found.hints()
    assert hints == Hints(priority=50, lora="tuned", token_ids=hints.token_ids)


def test_types_that_the_engine_converts_are_read_as_it_does() -> None:
    found = projected(
        b'{"model": "m", "prompt": [1], "stream": "yes", "n": "2", "max_tokens": 3.0, "x": NaN}'
    )
    assert (found.stream, found.samples, found.max_tokens) == (True, 2, 3)


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"null", b"\xff\xfe", b"[" * 100_000])
def test_only_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        FORMAT.parse(body, ())
    FORMAT.parse(b'{"anything": true}', ())


@pytest.mark.parametrize(
    "spelled", [b'"detokenize":true', b'"detokenize": false', b'"de\\u0074okenize":null']
)
def test_body_that_says_what_it_wants_arrives_byte_for_byte(spelled: bytes) -> None:
    body = b'{ "prompt":[1],  %b, "x":1e-7 }' % spelled
    assert FORMAT.upstream(FORMAT.parse(body, ()), View(), IDS).body == body


def test_token_ids_are_asked_for_where_the_client_says_nothing() -> None:
    sent = FORMAT.upstream(FORMAT.parse(b'{ "prompt":[1], "x":1e-7 }', ()), View(b"/base"), IDS)
    assert sent.body == b'{"detokenize":false, "prompt":[1], "x":1e-7 }'
    assert sent.target == b"/base/v1/completions"
    assert (b"x-request-id", b"private") in sent.headers


def test_closing_the_connection_is_the_only_abort() -> None:
    request = FORMAT.parse(b'{"prompt":[1]}', ())
    assert list(FORMAT.abort(View(), request, IDS)) == []
    with pytest.raises(InvalidRequest, match="close the connection"):
        FORMAT.aborted_ids(b"{}")
