"""The client of etcd: login, TLS, failover, and invalid replies."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.stores.etcd.client import EtcdAccess, EtcdClient, within
from gateway.stores.etcd.keys import Keys
from gateway.stores.etcd.wire import EtcdError, EtcdUnreachable
from tests.security.certificates import Authority
from tests.stores.contract import ONE, TWO
from tests.stores.etcd import cluster
from tests.stores.etcd.cluster import RANGE, Member
from tests.stores.etcd.conftest import Opened
from tests.stores.watching import turns, watching
from tests.support.gateway import until
from tests.support.scripted import scripted

USER = {"user": "gateway", "password": "pass word"}
OK = b"HTTP/1.1 200 OK\r\n\r\n"


def client_of(*endpoints: str, **access: Any) -> EtcdClient:
    return EtcdClient(EtcdAccess(endpoints, **access))


async def ask(client: EtcdClient, seconds: float = 20) -> dict[str, object]:
    return await client.call("/v3/kv/range", RANGE, until=within(seconds))


async def messages(client: EtcdClient, url: str, most: int = 100) -> list[Mapping[str, Any]]:
    """Return the messages of a watch, at most so many."""
    found: list[Mapping[str, Any]] = []
    async with client.stream(url, "/v3/watch", {}, until=within(20)) as stream:
        async for message in stream:
            found.append(message)
            if len(found) == most:
                break
    return found


@pytest.fixture
def silent() -> Iterator[str]:
    """A URL where connections are accepted and never answered."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def refused() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"http://127.0.0.1:{server.getsockname()[1]}"


async def test_endpoints_that_fail_are_tried_last_from_then_on(
    shared_etcd: Member, silent: str, refused: str
) -> None:
    client = client_of(refused, silent, shared_etcd.url + "/")
    assert await ask(client, 6)
    assert client.endpoint == shared_etcd.url
    assert await ask(client, 6)


async def test_error_that_other_members_would_repeat_is_raised_at_once(
    shared_etcd: Member, refused: str
) -> None:
    client = client_of(shared_etcd.url, refused)
    with pytest.raises(EtcdError, match="key is not provided") as failure:
        await client.call("/v3/kv/range", {"key": ""}, until=within(20))
    assert failure.value.code == 3
    assert client.endpoint == shared_etcd.url


@pytest.mark.virtual_time
async def test_call_and_stream_end_at_their_deadline_whatever_the_endpoints_do(
    silent: str, refused: str
) -> None:
    client, now = client_of(silent, refused, silent + "/"), asyncio.get_running_loop().time
    started = now()
    with pytest.raises(EtcdUnreachable, match="no answer in time") as failure:
        await ask(client, 20)
    assert now() - started == pytest.approx(20)
    assert refused in str(failure.value)
    with pytest.raises(EtcdUnreachable, match="no answer in time"):
        await messages(client, silent)
    assert now() - started == pytest.approx(40)


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 18\r\n\r\n404 page not found",
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
        b'HTTP/1.1 500 Oh\r\nContent-Length: 12\r\n\r\n{"code": {}}',
    ],
)
async def test_reply_that_is_not_one_of_etcd_is_an_error(reply: bytes) -> None:
    """For a call and for a stream."""
    async with scripted(reply) as server:
        client = client_of(server.url)
        with pytest.raises(EtcdUnreachable):
            await ask(client)
        with pytest.raises(EtcdUnreachable):
            await messages(client, server.url)


@pytest.mark.parametrize(
    "error",
    [
        b'{"error":{"grpc_code":14,"http_code":503,"message":"no leader"}}\n',
        b'{"result":{}}\n{"error":{"code":14,"message":"no leader"}}\n',
    ],
)
async def test_error_in_a_stream_ends_it(error: bytes) -> None:
    """In both formats of etcd."""
    async with scripted(OK + error) as server:
        with pytest.raises(EtcdError, match="no leader"):
            await messages(client_of(server.url), server.url)


@pytest.mark.parametrize(
    "end",
    [
        b'{"result":{"canceled":true,"cancel_reason":"Unauthenticated desc = invalid auth token"}}',
        b'{"error":{"grpc_code":16,"message":"etcdserver: invalid auth token"}}',
        b'{"error":{"grpc_code":3,"message":"etcdserver: revision in header is old"}}',
    ],
)
async def test_watch_that_ended_for_an_expired_login_logs_in_again(end: bytes) -> None:
    """Scripted, as a real server sends each of these only now and then."""
    login = OK + b'{"token":"new"}'
    async with scripted(login, OK + end, login, OK + b'{"result":{"created":true}}') as server:
        client = client_of(server.url, **USER)
        with pytest.raises(EtcdError, match="auth token|header is old"):
            await messages(client, server.url)
        assert await messages(client, server.url, most=1) == [{"created": True}]


class TestLogin:
    """Authentication is enabled, and the user has access to its own prefix only."""

    @pytest.fixture
    def secured(self, member: Member) -> Member:
        for path, body in (
            ("user/add", {"name": "root", "password": "root's"}),
            ("role/add", {"name": "root"}),
            ("user/grant", {"user": "root", "role": "root"}),
            ("user/add", {"name": "gateway", "password": "pass word"}),
            ("role/add", {"name": "workers"}),
            ("role/grant", {"name": "workers", "perm": {"permType": "READWRITE", **Keys("/test").all}}),
            ("user/grant", {"user": "gateway", "role": "workers"}),
            ("enable", {}),
        ):
            member.call(f"auth/{path}", **body)
        return member

    async def test_everything_works_for_the_user(self, secured: Member, opened: Opened) -> None:
        """Also after a restart of the server, which ends all tokens."""
        store = opened(secured.url, **USER)
        async with watching(store) as watched:
            await store.put(ONE, ttl=2)
            await watched.knows(ONE.url)
            await asyncio.sleep(2.5)
            await watched.knows(ONE.url)
            await asyncio.to_thread(secured.kill)
            secured.start()
            await turns(store, healthy=False)
            await turns(store, healthy=True)
            await store.put(TWO)
            await watched.knows(ONE.url, TWO.url)
            assert await store.delete(ONE.url)
            await watched.knows(TWO.url)

    async def test_refusal_is_reported_without_the_password(
        self, secured: Member, opened: Opened, caplog: pytest.LogCaptureFixture
    ) -> None:
        cases: list[tuple[dict[str, Any], str, str]] = [
            ({**USER, "password": "s3cret"}, "/test", "invalid user ID or password"),
            ({}, "/test", "user name is empty"),
            (USER, "/other", "permission denied"),
        ]
        for access, prefix, problem in cases:
            store = opened(secured.url, prefix=prefix, **access)
            async with watching(store) as watched:
                await until(lambda store=store, problem=problem: problem in store.reason)  # type: ignore[misc]
                assert not watched.changes
            assert "s3cret" not in caplog.text + repr(EtcdAccess([], **access)) + store.reason

    async def test_login_is_not_needed_where_there_are_no_users(
        self, shared_etcd: Member, opened: Opened, prefix: str
    ) -> None:
        store = opened(shared_etcd.url, prefix=prefix, **USER)
        async with watching(store) as watched:
            await store.put(ONE)
            await watched.knows(ONE.url)


async def test_tls_with_certificates_of_both_sides(tmp_path: Path, opened: Opened) -> None:
    """A client without a certificate is refused; one that does not trust the server reports that."""
    cluster.require()
    authority = Authority(tmp_path)
    certificate, key = authority.files()
    files = {"cert-file": certificate, "key-file": key, "trusted-ca-file": str(authority.file)}
    flags = [*(f"--{name}={path}" for name, path in files.items()), "--client-cert-auth"]
    member = Member(tmp_path, tls=flags)
    member.start()
    try:
        store = opened(member.url, tls=authority.client(shows=True))
        async with watching(store) as watched:
            await watched.until(lambda: bool(watched.changes), 60)
            await store.put(ONE)
            await watched.knows(ONE.url)
        with pytest.raises(EtcdUnreachable):  # with a message that depends on which side is quicker
            await ask(client_of(member.url, tls=authority.client()))
        with pytest.raises(EtcdUnreachable, match="CERTIFICATE_VERIFY_FAILED"):
            await ask(client_of(member.url))
    finally:
        member.kill()
