"""Pages in browsers: which origins may read replies (CORS)."""

from __future__ import annotations

import pytest

from gateway.limits import DEFAULT_HEAD
from gateway.settings import SettingsError, load_settings
from gateway.sim import Reply, SimConfig, SimServer
from tests.support.gateway import RawClient, generates, rig
from tests.support.generate import KINDS, body_of

PAGE, OTHER = "https://chat.example.org", "https://evil.example.org"
KEYS = {"api_key": "k", "admin_api_key": "admin"}
KEY = {"authorization": "Bearer admin"}
PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,x-a"}
ROUTES = [
    (KINDS["sglang"], "POST"),
    ("/v1/chat/completions", "POST"),
    ("/workers", "GET"),
    ("/nothing", "GET"),
]


@pytest.mark.parametrize("origins", [(PAGE, "http://a"), ("*",)])
@pytest.mark.parametrize("path", [path for path, _ in ROUTES])
async def test_preflight_is_answered_without_a_key(path: str, origins: tuple[str, ...]) -> None:
    """An origin that is not allowed learns nothing from it."""
    async with rig(cors_origin=origins, **KEYS) as gateway:
        for origin in (PAGE, PAGE.upper(), OTHER):
            reply = await gateway.client.options(path, headers={"origin": origin, **PREFLIGHT})
            allowed = "*" if "*" in origins else None if origin == OTHER else origin
            assert (reply.status_code, reply.headers.get("access-control-allow-origin")) == (204, allowed)
            assert reply.headers["access-control-allow-methods"] == "POST"
            assert reply.headers["access-control-allow-headers"] == "authorization,x-a"
            assert "access-control-allow-credentials" not in reply.headers
        for headers in ({"origin": PAGE}, PREFLIGHT):  # is no preflight
            assert (await gateway.client.options(path, headers=headers)).status_code in (401, 405)


@pytest.mark.parametrize("stream", [False, True])
async def test_replies_of_all_routes_may_be_read_by_the_given_origins_only(stream: bool) -> None:
    """Errors as well. The worker's own answers to an origin do not count, and it is not asked."""
    async with (
        SimServer("sglang", SimConfig()) as sim,
        rig(sim.url, cors_origin=[PAGE], **KEYS) as gateway,
    ):
        for path, method in ROUTES:
            for headers in (KEY, {}):
                for origin in (PAGE, OTHER, None):
                    reply = await gateway.client.request(
                        method,
                        path,
                        json=body_of("sglang", 2, stream),
                        headers=headers if origin is None else {**headers, "origin": origin},
                    )
                    allowed = PAGE if origin == PAGE else None
                    assert reply.headers.get("access-control-allow-origin") == allowed, (path, reply.text)
                    assert "origin" in reply.headers.get_list("vary")
        sim.behave(Reply(body=b"{}", headers=(("Access-Control-Allow-Origin", "*"), ("Vary", "x"))))
        reply = await gateway.client.post(
            "/generate", json=body_of("sglang"), headers={**KEY, "origin": PAGE}
        )
        assert reply.headers.get_list("access-control-allow-origin") == [PAGE]
        assert reply.headers.get_list("vary") == ["x", "origin"]
        assert all(b"origin" not in dict(arrival.headers) for arrival in generates(sim))


HEAD = b"POST /generate HTTP/1.1\r\nhost: a\r\norigin: %b\r\n"


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("status", "rest"),
    [
        (400, b"a: b\r\nno colon\r\n\r\n"),
        (400, b"transfer-encoding: gzip\r\n\r\n"),
        (400, b"content-length: 1\r\ncontent-length: 2\r\n\r\n"),
        (400, b"transfer-encoding: chunked\r\n\r\nno size\r\n"),
        (431, b"a: b\r\n" * DEFAULT_HEAD.lines + b"\r\n"),
        (431, b"a: b\r\nc: " + b"d" * DEFAULT_HEAD.size),
        (408, b"a: b\r\n"),
        (408, b"content-length: 9\r\n\r\n{"),
        (413, b"content-length: 2000000\r\n\r\n"),
    ],
)
async def test_reply_to_a_request_that_reaches_no_route_may_be_read_as_well(status: int, rest: bytes) -> None:
    """By the origin in its own head, not in that of the request before it."""
    async with rig(cors_origin=[PAGE], body_limit_mb=1) as gateway:
        for origin in (PAGE, OTHER):
            client = await RawClient.connect(gateway.port)
            client.request("/nothing", b"", headers=(("origin", PAGE),))
            await client.reply()
            client.writer.write(HEAD % origin.encode() + rest)
            head = (await client.head()).lower()
            assert head.startswith(b"http/1.1 %d" % status)
            allowed = b"\r\naccess-control-allow-origin: %b\r\n" % PAGE.encode()
            assert (head.count(allowed), head.count(b"access-control-allow-origin")) == (
                (1, 1) if origin == PAGE else (0, 0)
            )
            assert b"\r\nvary: origin\r\n" in head
            client.leave()


async def test_no_page_may_read_anything_by_default() -> None:
    async with SimServer("sglang", SimConfig()) as sim, rig(sim.url) as gateway:
        sim.behave(Reply(body=b"{}", headers=(("Access-Control-Allow-Origin", "*"),)))
        for path, method in ROUTES:
            reply = await gateway.client.request(
                method, path, json=body_of("sglang"), headers={"origin": PAGE, **PREFLIGHT}
            )
            assert not [name for name in reply.headers if name.startswith("access-control")]
            assert (await gateway.client.options(path, headers=PREFLIGHT)).status_code in (404, 405)


@pytest.mark.parametrize("origin", ["chat.example.org", PAGE + "/", "https://*.org", "null", "https://a b"])
def test_value_that_is_no_origin_is_a_start_up_error(origin: str) -> None:
    with pytest.raises(SettingsError, match="--cors-origin"):
        load_settings({"cors_origin": (origin,)})
