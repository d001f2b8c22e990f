"""A reply through the gateway equals the engine's direct reply, and a stream joins to the unary reply."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from gateway.formats import sglang, vllm
from gateway.formats.contract import Ids, ReplyHead
from gateway.formats.worker_contract import WorkerInfo
from tests.engines.cases import KINDS, LATE, REFUSED, VALID, rows
from tests.engines.front import ID, Front, Json, Reply, events, shapes
from tests.formats.sglang.support import TIMINGS
from tests.formats.vllm.support import VOLATILE

#: Headers that belong to one connection or to one moment.
OWN = {"connection", "content-length", "date", "server", "transfer-encoding", "x-request-id"}
#: Ids made by the engine, times, and members that depend on earlier requests.
BY_CHANCE = TIMINGS | VOLATILE | {"id", "cached_tokens", "cached_tokens_details"}


def assert_same_head(direct: Reply, through: Reply) -> None:
    assert through.status == direct.status
    kept = [
        {name: value for name, value in reply.headers.items() if name not in OWN}
        for reply in (direct, through)
    ]
    assert kept[1] == kept[0]
    assert [len(through.headers.get_list(name)) for name in ("date", "server")] == [1, 1]
    assert ("content-length" in through.headers) != ("transfer-encoding" in through.headers)


def assert_same(expected: object, seen: object) -> None:
    """Check equality, including the order of keys."""
    assert seen == expected
    assert repr(seen) == repr(expected)


def unary(case: Json) -> Json:
    return {key: value for key, value in case.items() if key != "stream_options"}


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize(("front", "case"), rows(VALID), indirect=["front"])
async def test_reply_equals_the_direct_one(
    client: httpx.AsyncClient, front: Front, case: str, stream: bool
) -> None:
    """Except for times and ids that the engine makes; a stream has its events, in either stream mode."""
    request = VALID[KINDS[front.kind]][case]
    request = {**request, "stream": True} if stream else unary(request)
    for _ in range(2):  # The first time, the engine's prefix cache is cold.
        direct, through = await front.both(client, request)
    assert direct.status == 200, direct.content
    assert_same_head(direct, through)
    if not stream:
        assert_same(front.comparable(direct.json()), front.comparable(through.json()))
        return
    assert direct.headers["content-type"].startswith("text/event-stream")
    expected, seen = events(direct.content), events(through.content)
    assert shapes(seen) == shapes(expected)
    assert_same(front.folded(expected), front.folded(seen))


#: A stream of vLLM has no log probabilities of the prompt. Refusals of what is no request repeat it,
#: ``stream`` included, so that the two differ (docs/joined-streams.md).
NOT_JOINED = {("vllm", "prompt logprobs"), ("vllm", "no prompt"), ("vllm", "no sampling")}
JOINED = [row for row in rows(VALID) + rows(REFUSED) + rows(LATE) if row not in NOT_JOINED]


@dataclass(frozen=True)
class Worker:
    """The engine as the gateway knows it; without ``info`` its mode follows from the stream."""

    info: WorkerInfo | None
    prefix: bytes = b""
    authorization: bytes | None = None


def joined(kind: str, case: Json, reply: Reply) -> tuple[Any, int]:
    """Return the reply and the status to which the stream joins."""
    ids = Ids((ID,), (ID,))
    head = ReplyHead(reply.status, [(name.lower(), value) for name, value in reply.headers.raw])
    body = json.dumps({**case, "stream": True}).encode()
    if kind == "vllm":
        worker = Worker(WorkerInfo("vllm", "vllm", usable=True, models=("tiny",)))
        reader = vllm.FORMAT.join(vllm.FORMAT.parse(body, ()), worker, ids, head)
    else:
        reader = sglang.FORMAT.join(sglang.FORMAT.parse(body, ()), Worker(None), ids, head)
    reader.feed(reply.content)
    return json.loads(reader.finish()), reader.facts.error_status or reply.status


def repeatable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: repeatable(item) for key, item in value.items() if key not in BY_CHANCE}
    return [repeatable(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("front", "case"), JOINED, indirect=["front"])
async def test_stream_joins_to_the_unary_reply(client: httpx.AsyncClient, front: Front, case: str) -> None:
    """Every key and value, and the status of a refusal; for vLLM in the same order."""
    engine = KINDS[front.kind]
    request = {**VALID[engine], **REFUSED[engine], **LATE[engine]}[case]
    for _ in range(2):
        complete = await front.ask(client, front.direct, unary(request))
        stream = await front.ask(client, front.direct, {**request, "stream": True})
    reply, status = joined(engine, request, stream)
    assert status == complete.status
    assert (status == 200) is (case in VALID[engine])
    assert repeatable(reply) == repeatable(complete.json())
    if engine == "vllm":
        assert json.dumps(repeatable(reply)) == json.dumps(repeatable(complete.json()))


async def test_stream_modes_are_distinguished(client: httpx.AsyncClient, sglang: Front) -> None:
    """Cumulative events grow and incremental ones do not: the fleet under test really has both modes."""
    reply = await sglang.ask(client, sglang.through, sglang.body(ID, 40, stream=True))
    lengths = [len(event["output_ids"]) for event in events(reply.content)]
    assert (lengths[-1] == 40) is (sglang.kind == "sglang")
    assert (sum(lengths) == 40) is (sglang.kind == "sglang-incremental")


async def test_sglang_put_equals_post(client: httpx.AsyncClient, sglang: Front) -> None:
    body = sglang.body(ID, 6, stream=False)
    replies = [await sglang.ask(client, sglang.through, body, verb) for verb in ("POST", "PUT")]
    assert [reply.status for reply in replies] == [200, 200]
    assert_same(*(sglang.comparable(reply.json()) for reply in replies))


async def test_id_from_the_header_is_read_like_the_engine_does(
    client: httpx.AsyncClient, front: Front
) -> None:
    """SGLang takes it for a request without ``rid``; vLLM prefers it to the body's id."""
    body = front.body("from-the-body", 4, stream=False)
    body.pop("rid", None)
    sides = [front.direct, front.through] if front.kind == "vllm" else [front.through]
    for side in sides:
        reply = await front.ask(client, side, body, **{"x-request-id": "from-the-header"})
        assert front.public_id(reply.json()) == "from-the-header"


async def test_request_without_an_id_gets_one(client: httpx.AsyncClient, front: Front) -> None:
    body = front.body("", 4, stream=False)
    del body["request_id" if front.kind == "vllm" else "rid"]
    seen = {front.public_id((await front.ask(client, front.through, body)).json()) for _ in range(2)}
    assert len(seen) == 2 and all(seen)
