"""Promises that hold under load, measured on a gateway in a process of its own."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import httpx
import pytest

from gateway.sim import Reply, SimConfig, SimServer
from tests.support import RawClient, generates
from tests.test_handler_bytes import KINDS, body_of
from tests.test_server import served

MEBIBYTE = 1024 * 1024


def resident(pid: int) -> int:
    """Resident memory of a process that is its own (not shared with files), in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


def event_of(kind: str, number: int) -> bytes:
    """A stream event of about 250 bytes, as the engine of ``kind`` sends it."""
    if kind == "sglang":
        text = (
            f'{{"text":" t","output_ids":[{number}],"meta_info":{{"id":"x","finish_reason":null,'
            f'"prompt_tokens":3,"weight_version":"default","num_retractions":0,"reasoning_tokens":0,'
            f'"completion_tokens":{number},"cached_tokens":0,"cached_tokens_details":null,"dp_rank":null}}}}'
        )
    else:
        text = (
            '{"request_id":"generate-tokens-x","usage":null,"output_mode":"tokens","choices":[{"index":0,'
            f'"finish_reason":null,"stop_reason":null,"token_ids":[{number}],"routed_experts":null,'
            '"sampling_mask":null,"weight_versions":null,"logprobs":null}]}'
        )
    return f"data: {text}\n\n".encode()


@pytest.mark.parametrize("kind", KINDS)
async def test_unread_stream_of_300_000_events_grows_the_gateway_by_a_mebibyte_at_most(kind: str) -> None:
    """A client that stops reading stops its worker."""
    stream = b"".join(event_of(kind, number) for number in range(1, 300_001))
    async with SimServer(kind, SimConfig()) as sim, served(sim.url) as gateway:
        async with httpx.AsyncClient(trust_env=False) as warm:
            for _ in range(50):
                await warm.post(gateway.url + KINDS[kind], json=body_of(kind, 3, True))
        sim.behave(Reply(body=stream, content_type="text/event-stream"))
        client = await RawClient.connect(gateway.port, limit=4096)
        before = resident(gateway.process.pid)
        client.request(KINDS[kind], json.dumps(body_of(kind, 5, True, rid="u", request_id="u")).encode())
        await client.head()
        # Nobody reads: once the sockets on the way are full, nothing moves any more.
        steady, last = 0, -1
        while steady < 5:
            await asyncio.sleep(0.05)
            grown = resident(gateway.process.pid) - before
            steady, last = (steady + 1, last) if grown == last else (0, grown)
        assert last <= MEBIBYTE, f"{last / MEBIBYTE:.2f} MiB"
        client.leave(reset=True)
        await sim.abort_called(1)


@pytest.mark.parametrize("kind", KINDS)
async def test_two_thousand_requests_at_once_all_get_200_while_health_answers(kind: str) -> None:
    """Two workers that take their time; none refused, shares even, /health within 100 ms."""
    config = SimConfig(start_delay=1.0, log_limit=4000)
    body = json.dumps(body_of(kind)).encode()
    async with SimServer(kind, config) as one, SimServer(kind, config) as two:
        async with served(one.url, two.url) as gateway:
            clients = [await RawClient.connect(gateway.port) for _ in range(2000)]
            for client in clients:
                client.request(KINDS[kind], body)
            slowest = 0.0
            async with httpx.AsyncClient(trust_env=False) as health:
                replies = asyncio.gather(*(client.head() for client in clients))
                while not replies.done():
                    start = time.perf_counter()
                    assert (await health.get(gateway.url + "/health")).status_code == 200
                    slowest = max(slowest, time.perf_counter() - start)
                    await asyncio.sleep(0.05)
            assert {head.split(b" ")[1] for head in await replies} == {b"200"}
            for client in clients:
                client.leave()
            shares = sorted(len(generates(sim)) for sim in (one, two))
            assert sum(shares) == 2000 and shares[1] - shares[0] <= 4, shares
    assert slowest < 0.1, f"/health took {slowest * 1000:.0f} ms"
