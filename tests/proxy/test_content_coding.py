"""Compressed request bodies are decoded within the limit, and reach every engine as the bodies they hold."""

from __future__ import annotations

import gzip
import json
from collections.abc import Generator
from functools import partial

import pytest

from gateway.errors import GatewayError, InvalidRequest, RequestTooLarge
from gateway.proxy.content_coding import STEP, decode
from gateway.sim import Reply
from tests.support.fleet import fleet
from tests.support.gateway import generates
from tests.support.generate import JSON, KINDS, body_of

LIMIT = 10_000_000
pack = partial(gzip.compress, mtime=0)  # the same in every process that runs the tests
SMALL = b'{"a":1}'
PACKED = pack(SMALL)


def run(steps: Generator[None, None, bytes]) -> tuple[bytes, int]:
    """The result, and the number of steps."""
    count = 0
    while True:
        try:
            next(steps)
            count += 1
        except StopIteration as end:
            return end.value, count


@pytest.mark.parametrize(
    ("packed", "plain"),
    [
        (PACKED, SMALL),
        (PACKED + pack(b"x" * 300_000), SMALL + b"x" * 300_000),
        (pack(b""), b""),
        (pack(bytes(range(256)) * 9000, compresslevel=0), bytes(range(256)) * 9000),
        (pack(b"x" * LIMIT), b"x" * LIMIT),
    ],
)
def test_body_is_decoded_in_steps_of_bounded_size(packed: bytes, plain: bytes) -> None:
    found, steps = run(decode(packed, "gzip", LIMIT))
    assert found == plain and steps >= len(plain) // STEP


@pytest.mark.parametrize(
    ("packed", "coding", "error", "message"),
    [
        (PACKED[:-1], "gzip", InvalidRequest, "no complete gzip"),
        (PACKED + b"x", "gzip", InvalidRequest, "no complete gzip"),
        (b"", "gzip", InvalidRequest, "no complete gzip"),
        (SMALL, "gzip", InvalidRequest, "no complete gzip"),
        (pack(b"x" * (LIMIT + 1)), "gzip", RequestTooLarge, "the limit of"),
        (PACKED, "br", InvalidRequest, "'br' is not supported here: gzip"),
        (PACKED, "gzip, gzip", InvalidRequest, "not supported"),
    ],
)
def test_body_that_cannot_be_decoded_is_refused(
    packed: bytes, coding: str, error: type[GatewayError], message: str
) -> None:
    with pytest.raises(error, match=message):
        run(decode(packed, coding, LIMIT))


@pytest.mark.parametrize("name", ["content-encoding", "x-body-compressed"])
@pytest.mark.parametrize("kind", KINDS)
async def test_engine_gets_the_decoded_body_byte_for_byte(kind: str, name: str) -> None:
    """Read as any other: it may stream, and be refused."""
    text = json.dumps(body_of(kind, 2, True), indent=3).encode()
    async with fleet(kind, body_limit_mb=1) as of:
        for coding in ("gzip", "GZip"):
            reply = await of.post(KINDS[kind], content=pack(text), headers={**JSON, name: coding})
            assert reply.status_code == 200 and reply.content.endswith(b"data: [DONE]\n\n")
        for arrival in generates(*of.sims):
            assert arrival.body.endswith(text[1:])  # an id may be set before it
            assert not {b"content-encoding", b"x-body-compressed"} & dict(arrival.headers).keys()
        for packed, coding, status in (
            (pack(b" " * 2**20 + text), "gzip", 413),
            (pack(b"{"), "gzip", 400),
            (text, "gzip", 400),
            (text, "br", 400),
        ):
            refused = await of.post(KINDS[kind], content=packed, headers={**JSON, name: coding})
            assert (refused.status_code, "error" in refused.json()) == (status, True)
        plain = await of.post(KINDS[kind], content=text, headers={**JSON, name: "identity"})
        assert plain.status_code == 200 and len(generates(*of.sims)) == 3


async def test_relayed_route_leaves_a_compressed_body_as_it_is() -> None:
    async with fleet("vllm") as of:
        path, packed = "/v1/chat/completions", pack(b'{"messages":[]}')
        of.sims[0].behave(Reply(body=b"{}"), path=path)
        assert (await of.post(path, content=packed, headers={"content-encoding": "gzip"})).status_code == 200
        (arrival,) = (each for each in of.sims[0].all_requests if each.target == path.encode())
        assert (arrival.body, dict(arrival.headers)[b"content-encoding"]) == (packed, b"gzip")
