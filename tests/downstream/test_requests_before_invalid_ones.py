"""Requests before an invalid one are served, and its error is no reply to them."""

from __future__ import annotations

import pytest

from gateway.sim import Reply
from tests.downstream.raw import CHUNKED, SMALL, connected, plain, reply_of
from tests.support.gateway import RawClient, arrived, generates


async def _closed(client: RawClient) -> None:
    assert await client.reader.read(-1) == b""


@pytest.mark.virtual_time
@pytest.mark.parametrize("before", [1, 3])
@pytest.mark.parametrize("split", [False, True], ids=["one-segment", "later"])
@pytest.mark.parametrize(
    "bad",
    [CHUNKED + b"2;\n{}", b"POST / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", CHUNKED + b"x" * 9],
    ids=["chunk", "head", "size"],
)
async def test_requests_before_an_invalid_one_are_answered_and_it_is_not(
    bad: bytes, before: int, split: bool
) -> None:
    """Its error would look like the reply to one of them."""
    async with connected() as (sim, gateway, client):
        sim.behave(Reply(delay=0.1), times=before)
        good = plain(SMALL) * before
        if split:
            client.writer.write(good + bad[:-1])
            await arrived(1, sim)
            client.writer.write(bad[-1:])
        else:
            client.writer.write(good + bad)
        for _ in range(before):
            assert await reply_of(client) == (200, b"{}")
        await _closed(client)
        assert len(generates(sim)) == before


@pytest.mark.virtual_time
async def test_request_before_a_head_over_the_limit_gets_its_own_reply() -> None:
    async with connected() as (sim, gateway, client):
        sim.behave(Reply(delay=0.2))
        client.writer.write(plain(SMALL) + b"GET /live HTTP/1.1\r\nx: ")
        await arrived(1, sim)
        client.writer.write(b"y" * 300_000)
        assert await reply_of(client) == (200, b"{}")
        await _closed(client)
