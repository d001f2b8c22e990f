"""Compressed request bodies are decoded within the limit, and reach every engine as the bodies they hold."""

from __future__ import annotations

import gzip
import json
import random
import sys
import tracemalloc
from collections.abc import Generator
from functools import partial

import pytest

from gateway.errors import InvalidRequest, RequestTooLarge
from gateway.proxy.content_coding import STEP, WINDOW, decode
from gateway.sim import Reply, SimConfig, SimServer
from tests.support.fleet import called, fleet
from tests.support.gateway import generates, rig
from tests.support.generate import JSON, KINDS, body_of

zstd = pytest.importorskip(
    "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd", reason="run make install again"
)
LIMIT = 10_000_000
SMALL = b'{"a":1}'
PACK = {"gzip": partial(gzip.compress, mtime=0), "zstd": zstd.compress}  # the same in each process of a run
CODINGS = pytest.mark.parametrize("coding", PACK)


def run(steps: Generator[None, None, bytes]) -> tuple[bytes, int]:
    """The result, and the number of steps."""
    count = 0
    while True:
        try:
            next(steps)
            count += 1
        except StopIteration as end:
            return end.value, count


@CODINGS
@pytest.mark.parametrize(
    "members",
    [
        [SMALL],
        [b""],
        [SMALL, b"x" * 300_000, b"", SMALL],
        [b"x" * LIMIT],
        [random.Random(1).randbytes(2_000_000)],
        [b"%d" % number for number in range(9000)],  # over one window
    ],
    ids=["small", "empty", "several", "limit", "incompressible", "many"],
)
def test_body_is_decoded_in_steps_of_bounded_size(coding: str, members: list[bytes]) -> None:
    plain = b"".join(members)
    found, steps = run(decode(b"".join(map(PACK[coding], members)), coding, LIMIT))
    assert found == plain and steps >= len(plain) // STEP


@pytest.mark.parametrize("zeros", [1, 511, WINDOW, 3 * WINDOW])
def test_zeros_behind_a_member_of_gzip_are_padding(zeros: int) -> None:
    packed = PACK["gzip"](SMALL) + bytes(zeros)
    assert run(decode(packed, "gzip", LIMIT))[0] == SMALL == gzip.decompress(packed)
    assert run(decode(packed * 2, "x-gzip", LIMIT))[0] == SMALL * 2
    with pytest.raises(InvalidRequest, match="no complete gzip"):
        run(decode(packed + b"x", "gzip", LIMIT))


@CODINGS
def test_body_that_cannot_be_decoded_is_refused(coding: str) -> None:
    packed = PACK[coding](SMALL)
    damaged = bytes((packed[0] ^ 1,)) + packed[1:]
    for broken in (packed[:-1], packed[:3], packed + b"x", packed + packed[:-1], b"", SMALL, damaged):
        with pytest.raises(InvalidRequest, match=f"no complete {coding}"):
            run(decode(broken, coding, LIMIT))
    for unknown in ("br", f"{coding}, {coding}", "deflate"):
        with pytest.raises(InvalidRequest, match="not supported here: gzip and zstd"):
            run(decode(packed, unknown, LIMIT))
    with pytest.raises(InvalidRequest, match="no complete zstd"):  # it would need a window of 16 MiB
        run(decode(zstd.compress(bytes(2**24), 22), "zstd", 2**25))


@CODINGS
def test_bomb_takes_no_more_memory_than_the_limit_and_a_few_steps(coding: str) -> None:
    bomb = PACK[coding](bytes(40 * LIMIT))
    tracemalloc.start()
    try:
        with pytest.raises(RequestTooLarge, match=f"the limit of {LIMIT} bytes"):
            run(decode(bomb, coding, LIMIT))
        assert tracemalloc.get_traced_memory()[1] < LIMIT + 4 * STEP
    finally:
        tracemalloc.stop()


@CODINGS
@pytest.mark.parametrize("name", ["content-encoding", "x-body-compressed"])
@pytest.mark.parametrize("kind", KINDS)
async def test_engine_gets_the_decoded_body_byte_for_byte(kind: str, name: str, coding: str) -> None:
    """Read as any other: it may stream, and be refused."""
    pack = PACK[coding]
    text = json.dumps(body_of(kind, 2, True), indent=3).encode()
    async with fleet(kind, body_limit_mb=1) as of:
        for spelled in (coding, coding.upper()):
            reply = await of.post(KINDS[kind], content=pack(text), headers={**JSON, name: spelled})
            assert reply.status_code == 200 and reply.content.endswith(b"data: [DONE]\n\n")
        for arrival in generates(*of.sims):
            assert arrival.body.endswith(text[1:])  # an id may be set before it
            assert not {b"content-encoding", b"x-body-compressed"} & dict(arrival.headers).keys()
        for packed, named, status in (
            (pack(b" " * 2**20 + text), coding, 413),
            (pack(b"{"), coding, 400),
            (pack(text)[:-1], coding, 400),
            (text, coding, 400),
            (text, "br", 400),
        ):
            refused = await of.post(KINDS[kind], content=packed, headers={**JSON, name: named})
            assert (refused.status_code, "error" in refused.json()) == (status, True)
        plain = await of.post(KINDS[kind], content=text, headers={**JSON, name: "identity"})
        assert plain.status_code == 200 and len(generates(*of.sims)) == 3


@CODINGS
async def test_relayed_route_forwards_a_compressed_body_unchanged(coding: str) -> None:
    """Whatever it holds, as the engine decides. Its model is the one that a header names."""
    path, pack = "/v1/chat/completions", PACK[coding]
    body = pack(b'{"messages":[],"model":"one"}')
    async with (
        SimServer("vllm", SimConfig(model="one")) as one,
        SimServer("vllm", SimConfig(model="two")) as two,
        rig(one.url, two.url, body_limit_mb=1) as gateway,
    ):
        two.behave(Reply(body=b"{}"), path=path, times=4)
        for sent in (body, body[:-1], b"no coding", pack(bytes(2**21))):
            named = {"content-encoding": coding}
            assert (await gateway.client.post(path, content=sent, headers=named)).status_code == 400
            named["x-model"] = "two"
            assert (await gateway.client.post(path, content=sent, headers=named)).status_code == 200
            arrival = called(two, path)[-1]
            assert (arrival.body, arrival.header("content-encoding")) == (sent, coding)
            assert arrival.header("x-model") is None
        assert not called(one, path)
