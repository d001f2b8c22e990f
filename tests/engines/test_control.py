"""A control call through the gateway has the engine's own reply, for valid and invalid calls."""

from __future__ import annotations

import httpx
import pytest

from tests.clients.site import EnginesOf, Site
from tests.engines.control_calls import SGLANG, VLLM, Call
from tests.support.routes import ROUTES

#: Calls that mean something else when sent twice, or that end the engine.
_ONCE = {"/release_memory_occupation", "/resume_memory_occupation", "/sleep", "/wake_up"}
#: Calls whose replies have values that change.
_MOVING = {"/server_info", "/get_server_info"}
#: Headers that belong to one connection, or to one moment.
_OWN_HEADERS = {"date", "server", "connection", "keep-alive"}


def passed_on(calls: list[Call]) -> list[Call]:
    """Return those of ``calls`` that the gateway forwards."""
    methods = {path: shared.call.methods for path, shared in ROUTES.calls.items()}
    found = [
        (call, call.target.partition("?")[0]) for call in calls if call.target.partition("?")[0] not in _ONCE
    ]
    return [call for call, path in found if call.method in methods.get(path, ()) and path not in _MOVING]


@pytest.mark.parametrize(("kind", "calls"), [("sglang", SGLANG), ("vllm", VLLM)])
async def test_answer_is_the_engines_own(
    site: Site, client: httpx.AsyncClient, engines_of: EnginesOf, kind: str, calls: list[Call]
) -> None:
    """Status, headers and bytes, in a fleet with one worker of that kind."""
    (engine,) = await engines_of(kind, 1)
    await site.serve(engine)
    compared = passed_on(calls)
    assert len(compared) > 30
    differences = []
    for call in compared:
        direct, through = [await answer(client, url, call) for url in (engine.url, site.url)]
        if direct != through:
            differences.append(f"{call}\n  engine:  {direct}\n  gateway: {through}")
    assert not differences, "\n".join(differences)


async def answer(client: httpx.AsyncClient, url: str, call: Call) -> tuple[int, dict[str, str], bytes]:
    reply = await call.answer(client, url)
    kept = {name: value for name, value in reply.headers.items() if name not in _OWN_HEADERS}
    return reply.status_code, kept, reply.content
