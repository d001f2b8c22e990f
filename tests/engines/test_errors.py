"""An engine's refusals are relayed unchanged; a request that would end an engine never reaches it."""

from __future__ import annotations

import httpx
import pytest

from tests.engines.cases import ENDING, KINDS, REFUSED, rows
from tests.engines.front import ID, Front, events


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
@pytest.mark.parametrize(("front", "case"), rows(REFUSED), indirect=["front"])
async def test_refusal_equals_the_direct_one(
    client: httpx.AsyncClient, front: Front, case: str, stream: bool
) -> None:
    """Status, type and every byte of an error are the engine's, also of one inside a stream."""
    body = {**REFUSED[KINDS[front.kind]][case], "stream": stream}
    direct, through = await front.both(client, body)
    assert through.status == direct.status
    assert through.headers["content-type"] == direct.headers["content-type"]
    assert through.content == direct.content
    if direct.status == 200:
        assert "error" in events(direct.content)[-1], "the engine found nothing wrong"


async def test_refusals_do_not_count_against_the_worker(client: httpx.AsyncClient, front: Front) -> None:
    """After 25 refused requests the next valid one is served."""
    bad = REFUSED[KINDS[front.kind]]["wrong type"]
    refused = [(await front.ask(client, front.through, bad)).status for _ in range(25)]
    assert set(refused) == {400}
    good = await front.ask(client, front.through, front.body(ID, 4, stream=False))
    assert good.status == 200


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b"null"])
async def test_body_that_is_no_object_is_refused_in_the_engines_shape(
    client: httpx.AsyncClient, front: Front, content: bytes
) -> None:
    """A body that is not a request gets a 400 that each engine's clients can read."""
    reply = await front.ask(client, front.through, content)
    assert (reply.status, reply.headers["content-type"]) == (400, "application/json")
    assert isinstance(reply.json()["error"]["message"], str)


async def test_model_nobody_serves_is_the_engines_404(client: httpx.AsyncClient, vllm: Front) -> None:
    """An unknown model gets the status and the shape that the engine uses."""
    direct, through = await vllm.both(client, vllm.body(ID, 4, stream=False, model="other"))
    assert through.status == direct.status == 404
    assert through.json()["error"].keys() == direct.json()["error"].keys()


@pytest.mark.parametrize("case", ENDING)
async def test_sglang_survives_what_would_end_it(client: httpx.AsyncClient, sglang: Front, case: str) -> None:
    """The requests are refused with a 400, and the engine continues to serve."""
    reply = await sglang.ask(client, sglang.through, ENDING[case])
    assert reply.status == 400
    assert isinstance(reply.json()["error"]["message"], str)
    good = await sglang.ask(client, sglang.direct, sglang.body(ID, 4, stream=False))
    assert good.status == 200
