"""Other inference routes, passed on by a events gateway. (The contract: tests/contract/test_relayed.py)"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from gateway.catalog import CatalogError
from gateway.settings import Settings, SettingsError, load_settings
from gateway.sim import Reply, Silence, SimConfig, SimServer
from gateway.sim.request_log import Arrival
from gateway.wiring.app import create_app
from tests.support.fleet import Fleet, called, fleet
from tests.support.gateway import RawClient, rig, until
from tests.support.routes import RELAYED

BODY = b'{ "messages" : [] , "x":1e-7,"model":"base" }'
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("kind", ["sglang", "vllm"])
async def test_routes_are_served_by_the_engines_that_have_them(kind: str) -> None:
    """Byte for byte, reply and all; where no engine of the fleet has one, it is a 503."""
    async with fleet(kind) as of:
        sim = of.sims[0]
        for path, formats in RELAYED.items():
            sim.behave(Reply(body=b'{ "y" :1 }', headers=(("x-engine", "1"),)), path=path)
            reply = await of.gateway.client.post(path, content=BODY, headers={"x-own": "a  b"})
            if kind not in formats:
                assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
                assert reply.json()["error"].keys() == {"message", "type", "param", "code"}
                continue
            assert (reply.status_code, reply.content, reply.headers["x-engine"]) == (200, b'{ "y" :1 }', "1")
            (arrival,) = called(sim, path)
            assert (arrival.method, arrival.body) == (b"POST", BODY)
            assert dict(arrival.headers)[b"x-own"] == b"a  b"


async def test_model_is_chosen_by_the_body_or_by_a_header() -> None:
    async with (
        SimServer("vllm", SimConfig(model="one")) as one,
        SimServer("vllm", SimConfig(model="two")) as two,
    ):
        async with rig(one.url, two.url) as gateway:
            for sim in (one, two):
                sim.behave(Reply(body=b"{}"), path=CHAT, times=4)
            post = gateway.client.post
            await post(CHAT, json={"model": "two"})
            await post(CHAT, json={}, headers={"x-model": "two"})
            assert [len(called(sim, CHAT)) for sim in (one, two)] == [0, 2]
            assert (await post(CHAT, json={})).status_code == 400
            reply = await post(CHAT, json={"model": "three"})
            assert (reply.status_code, reply.json()["error"]["param"]) == (404, "model")


@pytest.mark.parametrize(
    "target", [f"{CHAT}?a=%2F+x&a=&b;", "/tokenize?", "/generate?rid=%41&x", "/detokenize"]
)
async def test_query_goes_on_byte_for_byte(target: str) -> None:
    path = target.partition("?")[0]
    async with fleet("sglang") as of:
        of.sims[0].behave(Reply(), path=path)
        client = await RawClient.connect(of.gateway.port)
        client.request(target, b'{"input_ids":[1],"rid":"a"}')
        await client.head()
        client.leave()
        assert target.encode() in [arrival.target for arrival in called(of.sims[0], path)]


@dataclass
class Unanswered:
    of: Fleet
    client: RawClient
    holder: SimServer
    arrival: Arrival

    @property
    def aborts(self) -> list[tuple[str, ...]]:
        """The ids that the engine with the request was sent aborts for; no other engine may be sent any."""
        assert not any(call.ids for sim in self.of.sims if sim is not self.holder for call in sim.aborts)
        return [call.ids for call in self.holder.aborts if call.ids]

    async def abort(self, what: dict[str, object]) -> None:
        """Something that is exactly this one."""
        path = "/inference/v1/abort_requests" if "request_ids" in what else "/abort_request"
        answer = await self.of.gateway.client.post(path, json=what)
        asked = self.of.sims if "abort_all" in what else [self.holder]
        results = [{"worker": sim.url, "aborted": int(sim is self.holder), "error": None} for sim in asked]
        rows = sorted(answer.json()["results"], key=lambda row: -row["aborted"])
        assert rows == sorted(results, key=lambda row: -int(str(row["aborted"])))


def sent_to(sim: SimServer, path: str) -> list[Arrival]:
    """The calls of ``path`` that have an id, which a probe of the same path has not."""
    return [arrival for arrival in called(sim, path) if arrival.header("x-request-id") is not None]


@asynccontextmanager
async def unanswered(
    kind: str, path: str, body: bytes, *headers: tuple[str, str]
) -> AsyncIterator[Unanswered]:
    async with fleet(kind, kind, probe_interval_secs=60) as of:
        for sim in of.sims:
            sim.behave(Silence(), path=path)
        client = await RawClient.connect(of.gateway.port)
        client.request(path, body, headers=headers)
        await until(lambda: any(sent_to(sim, path) for sim in of.sims))
        (holder,) = [sim for sim in of.sims if sent_to(sim, path)]
        (arrival,) = sent_to(holder, path)
        yield Unanswered(of, client, holder, arrival)
        client.leave()


NAMED = ("x-request-id", "A")
MANY = b'{"prompt":["a","b"]}'


@pytest.mark.parametrize(
    ("kind", "path", "body", "headers", "what", "engine_id"),
    [
        ("sglang", CHAT, b'{"rid":"A"}', (), {"rid": "A"}, "A"),
        ("sglang", "/v1/completions", b'{"rid":"A","prompt":[1]}', (), {"abort_all": True}, "A"),
        ("vllm", CHAT, b"{}", (NAMED,), {"request_ids": ["A"]}, "chatcmpl-A"),
        ("vllm", CHAT, b'{"request_id":"A"}', (), {"request_ids": ["chatcmpl-A"]}, "chatcmpl-A"),
        ("vllm", "/v1/completions", b"{}", (NAMED,), {"request_ids": "cmpl-A-0"}, "cmpl-A-0"),
        ("vllm", "/v1/completions", b'{"n":2}', (NAMED,), {"request_ids": "A"}, "cmpl-A-0"),
        ("vllm", "/v1/completions", MANY, (NAMED,), {"request_ids": "cmpl-A-7"}, "cmpl-A-7"),
        ("vllm", CHAT, b'{"n":2}', (NAMED,), {"request_ids": "A"}, "chatcmpl-A"),
        ("sglang", "/v1/completions", b'{"rid":"A","prompt":["a","b"]}', (), {"rid": "A_1"}, "A_1"),
    ],
)
async def test_abort_names_the_request_as_its_engine_does(  # noqa: PLR0913 - the cases
    kind: str,
    path: str,
    body: bytes,
    headers: tuple[tuple[str, str], ...],
    what: dict[str, object],
    engine_id: str,
) -> None:
    """And the client gets what the engine makes of that."""
    async with unanswered(kind, path, body, *headers) as it:
        await it.abort(what)
        assert it.aborts == [(engine_id,)]
        assert it.arrival.body == body and it.arrival.client_gone is None
        assert it.of.gateway.app.lifecycle.open_exchanges == 1


@pytest.mark.parametrize(
    ("kind", "path", "body", "what"),
    [
        ("sglang", CHAT, b"{}", {"rid": "A"}),
        ("sglang", CHAT, b"{}", {"abort_all": True}),
        ("sglang", CHAT, b'{"rid":"A","n":2}', {"rid": "A"}),
        ("sglang", "/v1/responses", b'{"rid":"A"}', {"rid": "A"}),
        ("sglang", "/v1/completions", b'{"rid":"A","prompt":["a","b"]}', {"rid": "A"}),
        ("vllm", "/v1/completions", MANY, {"request_ids": ["A"]}),
        ("vllm", CHAT, b'{"use_beam_search":true}', {"request_ids": ["chatcmpl-A"]}),
        ("vllm", "/v1/responses", b"{}", {"request_ids": ["A"]}),
    ],
)
async def test_abort_closes_what_the_engine_cannot_tell_by_an_id(
    kind: str, path: str, body: bytes, what: dict[str, object]
) -> None:
    async with unanswered(kind, path, body, NAMED) as it:
        await it.abort(what)
        assert (await it.client.head()).startswith(b"HTTP/1.1 499 ")
        await until(lambda: it.arrival.client_gone is not None)
        assert it.aborts == []


GENERATE, COMPLETIONS = "/inference/v1/generate", "/v1/completions"


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("foo", [GENERATE, CHAT, COMPLETIONS]),
        ("generate-tokens-foo", [GENERATE]),
        ("chatcmpl-foo", [CHAT]),
        ("cmpl-foo-0", [COMPLETIONS]),
        *((name, []) for name in ("cmpl-foo-1", "cmpl-foo", "chatcmpl-foo-0", "FOO", "Chatcmpl-foo", "fo")),
        ("generate-tokens-chatcmpl-foo", []),
    ],
)
async def test_abort_ends_what_the_engine_calls_so_and_nothing_else(name: str, paths: list[str]) -> None:
    """Three requests of one id, at three routes: to the engine they have three names."""
    spellings = {GENERATE: "generate-tokens-{}", CHAT: "chatcmpl-{}", COMPLETIONS: "cmpl-{}-0"}
    body = b'{"token_ids":[1],"sampling_params":{}}'
    async with fleet("vllm", probe_interval_secs=60) as of:
        sim, clients = of.sims[0], []

        def named(path: str) -> list[str]:
            return [one.header("x-request-id") or "" for one in sent_to(sim, path)]

        for path in spellings:
            sim.behave(Silence(), path=path)
            clients.append(await RawClient.connect(of.gateway.port))
            clients[-1].request(path, body, headers=(("x-request-id", "foo"),))
            await until(lambda path=path: bool(named(path)))  # type: ignore[misc]
        answer = await of.gateway.client.post("/inference/v1/abort_requests", json={"request_ids": [name]})
        assert answer.json()["aborted"] == len(paths)
        expected = {spellings[path].format(*named(path)) for path in paths}
        assert {id for call in sim.aborts for id in call.ids} == expected
        for client in clients:
            client.leave()


async def test_name_that_looks_like_another_routes_is_no_request_of_this_one() -> None:
    """A request whose client called it ``chatcmpl-foo`` is another one to the engine."""
    async with unanswered(
        "vllm", GENERATE, b'{"token_ids":[1],"sampling_params":{}}', ("x-request-id", "chatcmpl-foo")
    ) as it:
        post = it.of.gateway.client.post
        answer = await post("/abort_requests", json={"request_ids": ["chatcmpl-foo"]})
        assert (answer.json()["aborted"], it.aborts) == (0, [])
        await it.abort({"request_ids": "generate-tokens-chatcmpl-foo"})
        assert it.aborts == [("generate-tokens-chatcmpl-foo",)]


@pytest.mark.parametrize(
    ("path", "what"),
    [
        *(("/abort_request", {"rid": name}) for name in ("A_1", "a", "A_0", "A_", "a_0")),
        ("/inference/v1/abort_requests", {"request_ids": ["A"]}),
    ],
)
async def test_abort_by_a_number_of_a_single_request_or_in_another_dialect_names_nothing(
    path: str, what: dict[str, object]
) -> None:
    async with unanswered("sglang", CHAT, b'{"rid":"A"}') as it:
        answer = await it.of.gateway.client.post(path, json=what)
        assert (answer.json()["aborted"], it.aborts) == (0, [])


@pytest.mark.parametrize(
    ("kind", "body", "engine_id"), [("sglang", b'{"rid":"A"}', "A"), ("vllm", b"{}", "chatcmpl-A")]
)
async def test_client_that_leaves_has_its_id_aborted_as_well(kind: str, body: bytes, engine_id: str) -> None:
    async with unanswered(kind, CHAT, body, NAMED) as it:
        it.client.leave()
        await until(lambda: it.aborts == [(engine_id,)])


async def test_same_id_twice_is_two_at_the_engine_and_one_to_the_client() -> None:
    """An abort by it means both."""
    async with unanswered("sglang", CHAT, b'{"rid":"A"}') as it:
        for sim in it.of.sims:
            sim.behave(Silence(), path="/v1/completions")
        second = await RawClient.connect(it.of.gateway.port)
        second.request("/v1/completions", b'{ "rid" :"A"}')
        found = [sim for sim in it.of.sims if sim is not it.holder][0]
        await until(lambda: bool(called(found, "/v1/completions")))
        (arrival,) = called(found, "/v1/completions")
        dispatch = json.loads(arrival.body)["rid"]
        assert arrival.body == b'{ "rid" :"%b"}' % dispatch.encode() and dispatch != "A"
        answer = await it.of.gateway.client.post("/abort_request", json={"rid": "A"})
        assert answer.json()["aborted"] == 2
        assert [call.ids for call in it.holder.aborts] == [("A",)]
        assert [call.ids for call in found.aborts] == [(dispatch,)]
        second.leave()


async def test_requests_are_spread_over_engines_of_all_formats_or_of_the_one_that_a_path_names() -> None:
    """Also at a path that was added."""
    paths = ("/pooling,vllm=/v1/odd",)
    async with fleet(*["sglang", "vllm"] * 2, relay_path=paths, router_mode="round_robin") as of:
        for path, shares in ((CHAT, [2, 2, 2, 2]), ("/pooling", [2, 2, 2, 2]), ("/v1/odd", [0, 4, 0, 4])):
            for sim in of.sims:
                sim.behave(Reply(body=b"{}"), path=path, times=9)
            for _ in range(8):
                assert (await of.gateway.client.post(path, content=b"{}")).status_code == 200
            assert [len(called(sim, path)) for sim in of.sims] == shares
        assert (await of.gateway.client.post("/v1/odder", content=b"{}")).status_code == 404


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/generate", "two endpoints"),
        ("/workers", "clashes"),
        ("/v1/models/*", "clashes"),
        ("nope=/x", "unknown format 'nope'"),
    ],
)
def test_path_that_cannot_be_added_is_a_start_up_error(path: str, message: str) -> None:
    with pytest.raises(CatalogError, match=message) as failure:
        create_app(Settings(relay_path=(path,)))
    assert "DYN_RELAY_PATHS" in str(failure.value)


@pytest.mark.parametrize(
    "path", ["x", "get /x", "GET|/x", "GET  x", "/*", "/*/x", "/a*b/*c", "/x?y", "/x/%41"]
)
def test_path_that_no_request_has_or_that_opens_every_route_is_a_start_up_error(path: str) -> None:
    with pytest.raises(SettingsError, match="--relay-path"):
        load_settings({"relay_path": (path,)})


async def test_route_has_the_methods_and_the_wildcards_it_is_given() -> None:
    """The worker gets method, path and query as they came; what else is asked is a 405 or a 404."""
    paths = ("GET /one", "GET|DELETE /files/*/content", "/any/*")
    async with fleet("vllm", relay_path=paths) as of:
        for method, path, status in (
            ("GET", "/one?a=%2F", 200),
            ("POST", "/one", 405),
            ("DELETE", "/files/f-1/content?x", 200),
            ("POST", "/files/f-1/content", 405),
            ("GET", "/files/f-1", 404),
            ("PUT", "/any/a/b", 200),
            ("GET", "/any", 404),
            ("GET", "/any/", 404),
            ("GET", "/any/a%2e", 200),
        ):
            sim, target = of.sims[0], path.replace("%2e", ".")
            sim.behave(Reply(body=b"1"), path=target.partition("?")[0])
            reply = await of.gateway.client.request(method, path)
            assert (reply.status_code, reply.content == b"1") == (status, status == 200), path
            if status == 200:
                (arrival,) = called(sim, target.partition("?")[0])
                assert (arrival.method.decode(), arrival.target.decode()) == (method, target)
            elif status == 405:
                assert reply.headers["allow"] == ("GET" if path == "/one" else "GET, DELETE")


@pytest.mark.parametrize(
    "path",
    ["/v1/load_lora_adapter", "/v1/load%5Flora_adapter", "/v1/x/../load_lora_adapter", "/v1/%2e%2E/pause"],
)
async def test_wildcard_opens_no_control_route(path: str) -> None:
    """With keys, a client that has none for control calls is refused, or finds nothing."""
    keys = {"api_key": "k", "admin_api_key": "admin"}
    async with fleet("vllm", relay_path=("/v1/*",), **keys) as of:  # type: ignore[arg-type]
        client = await RawClient.connect(of.gateway.port)
        client.request(path, b"{}", headers=(("authorization", "Bearer k"),))
        assert (await client.head())[9:12] in (b"401", b"403", b"404")
        client.leave()
        assert not [each for each in of.sims[0].all_requests if each.target == path.encode()]
        named = {"authorization": "Bearer k"}
        of.sims[0].behave(Reply(body=b"1"), path="/v1/other")
        assert (await of.gateway.client.get("/v1/other", headers=named)).content == b"1"


async def test_requests_of_a_wildcard_are_counted_under_its_path() -> None:
    async with fleet("vllm") as of:
        for id in ("resp_1", "resp_2"):
            await of.gateway.client.get(f"/v1/responses/{id}")
        lines = (await of.gateway.client.get("/metrics")).text.splitlines()
        counted = [line for line in lines if "requests_total{" in line and "responses" in line]
        assert len(counted) == 1 and counted[0].endswith(" 2") and "resp_" not in counted[0]


async def test_routes_are_on_the_page_of_the_api() -> None:
    async with fleet() as of:
        paths = (await of.gateway.client.get("/openapi.json")).json()["paths"]
        assert {path.replace("/*", "/{segment3}") for path in RELAYED} <= set(paths)
        assert paths[CHAT]["post"]["tags"] == ["inference"]


async def test_stream_is_relayed_event_by_event() -> None:
    event = b"data: " + json.dumps({"choices": [{"delta": {"content": "a"}}]}).encode() + b"\n\n"
    events = event * 3 + b"data: [DONE]\n\n"
    async with fleet("vllm") as of:
        of.sims[0].behave(Reply(body=events, content_type="text/event-stream"), path=CHAT)
        reply = await of.gateway.client.post(CHAT, content=b'{"stream":true}')
        assert (reply.content, reply.headers["content-type"]) == (events, "text/event-stream")
        text = (await of.gateway.client.get("/metrics")).text
        assert "dynamo_frontend_time_to_first_token_seconds_count" in text
        assert 'endpoint="chat_completions",request_type="stream",status="success"' in text
