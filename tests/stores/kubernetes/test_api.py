"""The client of the API server: events, limits, and broken connections."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from gateway.stores.kubernetes import api
from gateway.stores.kubernetes.access import ApiServerAccess
from gateway.stores.kubernetes.api import Stream, connected
from gateway.stores.kubernetes.failures import ApiRefusal, ApiServerUnreachable
from tests.stores.kubernetes.cluster import Status
from tests.stores.kubernetes.following import Site

TARGET = "/api/v1/pods"


async def stream(*chunks: bytes | Exception) -> AsyncIterator[bytes]:
    for chunk in chunks:
        if isinstance(chunk, Exception):
            raise chunk
        yield chunk


async def test_events_are_parsed_however_the_bytes_are_split() -> None:
    data = b'{"n": 1}\n\n{"n": 2}\n{"n": "\xc2\x85"}\n'
    for size in range(1, len(data) + 1):
        read = Stream(stream(*(data[at : at + size] for at in range(0, len(data), size))))
        events = []
        while (some := await read.read()) is not None:
            events += some
        assert events == [{"n": 1}, {"n": 2}, {"n": "\x85"}]


async def test_truncated_event_is_dropped() -> None:
    read = Stream(stream(b'{"n": 1}\n{"n": 2}'))
    assert await read.read() == [{"n": 1}]
    assert await read.read() is None


async def test_endless_event_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "EVENT_LIMIT", 100)
    with pytest.raises(ApiServerUnreachable, match="more than 100 bytes"):
        await Stream(stream(b"x" * 101)).read()


@pytest.mark.parametrize("error", [httpx.ReadError("cut"), OSError("odd"), UnicodeError("label too long")])
async def test_broken_connection_is_unreachable(error: Exception) -> None:
    with pytest.raises(ApiServerUnreachable, match=str(error)):
        await Stream(stream(error)).read()


async def test_no_redirect_is_followed(site: Site) -> None:
    """The token is sent to the configured server only."""
    site.server.faults = [(Status(302, "", "elsewhere"), {"Location": f"{site.server.url}/api/v1/nodes"})]
    async with connected(site.access) as server:
        with pytest.raises(ApiRefusal, match="302"):
            await server.page(TARGET, {})
    assert len(site.server.asked) == 1


async def test_proxy_of_the_environment_is_not_used(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    async with connected(site.access) as server:
        assert (await server.page(TARGET, {}))["items"] == []


async def test_url_of_the_server_may_have_a_path(site: Site) -> None:
    """As managers of several clusters use it."""
    access = ApiServerAccess(f"{site.server.url}/k8s/clusters/c-1/", site.token, site.certificates)
    async with connected(access) as server:
        with pytest.raises(ApiRefusal, match="404"):
            await server.page(TARGET, {})
    assert site.server.asked[0].path == "/k8s/clusters/c-1/api/v1/pods"


async def test_invalid_host_name_is_unreachable(tmp_path: Path) -> None:
    async with connected(replace(ApiServerAccess("http://a"), server=f"http://{'x' * 70}.example")) as server:
        with pytest.raises(ApiServerUnreachable):
            await server.page(TARGET, {})


async def test_error_reply_is_read_up_to_a_limit(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "REASON_LIMIT", 10)
    site.server.faults = [(Status(500, "Busy", "x" * 100_000), {})]
    async with connected(site.access) as server:
        with pytest.raises(ApiRefusal, match="500: Internal Server Error"):
            await server.page(TARGET, {})
