"""The client of the API server: events, limits, and broken connections."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import pytest

from gateway.stores.kubernetes import api
from gateway.stores.kubernetes.access import ApiServerAccess
from gateway.stores.kubernetes.api import Stream, connected
from gateway.stores.kubernetes.failures import ApiRefusal, ApiServerUnreachable, Failure
from tests.stores.kubernetes.cluster import Status
from tests.stores.kubernetes.conftest import Site


async def stream(*chunks: bytes | Exception) -> AsyncIterator[bytes]:
    for chunk in chunks:
        if isinstance(chunk, Exception):
            raise chunk
        yield chunk


async def page(access: ApiServerAccess) -> Mapping[str, Any]:
    async with connected(access) as server:
        return await server.page("/api/v1/pods", {})


async def test_events_are_parsed_however_the_bytes_are_split() -> None:
    """One that is cut off at the end is dropped."""
    data = b'{"n": 1}\n\n{"n": 2}\n{"n": "\xc2\x85"}\n{"n":'
    for size in range(1, len(data) + 1):
        read = Stream(stream(*(data[at : at + size] for at in range(0, len(data), size))))
        events = []
        while (some := await read.read()) is not None:
            events += some
        assert events == [{"n": 1}, {"n": 2}, {"n": "\x85"}]


async def test_endless_event_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "EVENT_LIMIT", 100)
    with pytest.raises(ApiServerUnreachable, match="more than 100 bytes"):
        await Stream(stream(b"x" * 101)).read()


@pytest.mark.parametrize("error", [httpx.ReadError("cut"), OSError("odd"), UnicodeError("label too long")])
async def test_broken_connection_is_unreachable(error: Exception) -> None:
    with pytest.raises(ApiServerUnreachable, match=str(error)):
        await Stream(stream(error)).read()


async def test_no_redirect_is_followed_and_no_proxy_used(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The token is sent to the configured server only."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    site.server.faults = [(Status(302, "", "elsewhere"), {"Location": f"{site.server.url}/api/v1/nodes"})]
    with pytest.raises(ApiRefusal, match="302"):
        await page(site.access)
    assert len(site.server.asked) == 1
    assert (await page(site.access))["items"] == []


async def test_url_of_the_server_may_have_a_path_and_an_invalid_one_is_unreachable(site: Site) -> None:
    """As managers of several clusters use it."""
    managed = ApiServerAccess(f"{site.server.url}/k8s/clusters/c-1/", site.token, site.certificates)
    invalid = ApiServerAccess(f"http://{'x' * 70}.example")
    for access, failure in ((managed, "404"), (invalid, "cannot be reached")):
        with pytest.raises(Failure, match=failure):
            await page(access)
    assert [asked.path for asked in site.server.asked] == ["/k8s/clusters/c-1/api/v1/pods"]


async def test_error_reply_is_read_up_to_a_limit(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "REASON_LIMIT", 10)
    site.server.faults = [(Status(500, "Busy", "x" * 100_000), {})]
    with pytest.raises(ApiRefusal, match="500: Internal Server Error"):
        await page(site.access)
