"""Who a request belongs to: which header wins, what is skipped, what is too much."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.errors import MetadataTooLarge
from gateway.proxy.context import METADATA_BYTES, METADATA_ENTRIES, NO_CONTEXT, RequestContext, read_context
from gateway.sim import SimConfig, SimServer
from tests.support.calls import calls_of
from tests.support.gateway import generates, rig
from tests.support.generate import KINDS, body_of

#: What an ordinary client sends.
ORDINARY = [
    (b"host", b"gateway"),
    (b"accept", b"*/*"),
    (b"accept-encoding", b"gzip, deflate"),
    (b"connection", b"keep-alive"),
    (b"user-agent", b"client/1"),
    (b"content-length", b"100"),
    (b"content-type", b"application/json"),
    (b"authorization", b"Bearer key"),
    (b"x-request-id", b"job-1"),
    (b"x-forwarded-for", b"10.0.0.1"),
]


def read(*lines: tuple[str, str]) -> RequestContext:
    return read_context([*ORDINARY, *((name.encode(), value.encode()) for name, value in lines)])


def test_ordinary_headers_have_no_context() -> None:
    assert read() is NO_CONTEXT


DYNAMO = [("x-dynamo-session-id", "d"), ("x-dynamo-parent-session-id", "dp")]
CLAUDE = [("x-claude-code-session-id", "c"), ("x-claude-code-agent-id", "ca")]
CODEX = [("thread-id", "t"), ("x-codex-parent-thread-id", "tp")]
OPEN_CODE = [("x-session-id", "o"), ("x-parent-session-id", "op")]


@pytest.mark.parametrize(
    ("lines", "session", "parent"),
    [
        (DYNAMO, "d", "dp"),
        (CLAUDE, "ca", "c"),
        (CODEX, "t", "tp"),
        (OPEN_CODE, "o", "op"),
        (OPEN_CODE + CODEX + CLAUDE + DYNAMO, "d", "dp"),
        (OPEN_CODE + CODEX + CLAUDE, "ca", "c"),
        (OPEN_CODE + CODEX, "t", "tp"),
        (DYNAMO[:1] + OPEN_CODE[1:] + CODEX[:1], "d", None),
        ([("x-dynamo-session-id", "s"), ("x-dynamo-parent-session-id", " s ")], "s", None),
        (DYNAMO[1:] + CODEX[1:], None, None),
        ([("x-session-id", "  "), ("x-session-id", " a "), ("x-session-id", "b")], "a", None),
    ],
    ids=[
        *("dynamo", "claude", "codex", "open-code", "all", "without-dynamo", "without-claude"),
        *("borrows-no-parent", "not-its-own-parent", "parent-alone", "first-that-says-something-trimmed"),
    ],
)
def test_first_kind_of_session_that_is_named_wins(
    lines: list[tuple[str, str]], session: str | None, parent: str | None
) -> None:
    context = read(*lines)
    assert (context.session, context.parent_session) == (session, parent)


@pytest.mark.parametrize(
    ("root", "child", "parent", "expected"),
    [
        ("r", None, None, ("r", None)),
        ("r", "a", None, ("a", "r")),
        ("r", "a", "b", ("a", "b")),
        ("r", "r", None, ("r", None)),
        (None, "a", None, ("a", None)),
        (None, "a", "b", ("a", "b")),
        (None, None, "b", (None, None)),
    ],
)
def test_child_agent_is_its_own_session_under_its_parent_or_the_root(
    root: str | None, child: str | None, parent: str | None, expected: tuple[str | None, str | None]
) -> None:
    names = ("session-id", "agent-id", "parent-agent-id")
    given = zip(names, (root, child, parent), strict=True)
    context = read(*((f"x-claude-code-{name}", value) for name, value in given if value is not None))
    assert (context.session, context.parent_session) == expected


@pytest.mark.parametrize(
    ("word", "final"), [("true", True), (" TRUE ", True), ("1", True), ("false", False), ("yes!", False)]
)
def test_session_is_final_when_its_client_says_so(word: str, final: bool) -> None:
    assert read(("x-dynamo-session-final", word), ("thread-id", "t")).session_final is final
    assert not read(("x-dynamo-session-final", word)).session_final, "there is no session"


def test_value_that_is_no_text_is_not_there() -> None:
    lines = [(b"x-dynamo-session-id", b"\xff"), (b"thread-id", b"t"), (b"x-dynamo-meta-k", b"\xfe")]
    context = read_context([*lines, (b"x-dynamo-meta-\xff", b"v"), (b"x-dynamo-meta-k", b"good")])
    assert context.session == "t"
    assert dict(context.metadata) == {"k": "good"}


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ([("x-smg-routing-key", "r"), ("x-session-id", "s"), *DYNAMO, *CLAUDE], "r"),
        ([("x-session-id", "s"), *DYNAMO, *CLAUDE, ("thread-id", "t")], "s"),
        ([*DYNAMO, *CLAUDE, ("thread-id", "t")], "d"),
        (CLAUDE, "ca"),
        ([("thread-id", "t")], "t"),
        ([("x-smg-routing-key", " "), ("x-session-id", " s ")], "s"),
        ([("x-parent-session-id", "p"), ("traceparent", "00-1-2-01")], None),
        ([], None),
    ],
)
def test_key_is_what_was_made_for_routing_and_else_the_session(
    lines: list[tuple[str, str]], key: str | None
) -> None:
    assert read(*lines).key == key


def test_routing_key_session_header_and_trace_are_kept_beside_the_session() -> None:
    context = read(*DYNAMO, ("x-smg-routing-key", "key"), ("x-session-id", "s"), ("traceparent", "00-1-2-01"))
    assert (context.routing_key, context.session_header, context.traceparent) == ("key", "s", "00-1-2-01")
    assert context.session == "d"


def test_metadata_loses_its_prefix_keeps_the_first_of_a_name_and_cannot_be_written_to() -> None:
    lines = [("x-dynamo-meta-a", " 1 "), ("x-dynamo-meta-a", "2"), ("x-dynamo-meta-", "x")]
    metadata: Any = read(*lines, ("x-dynamo-meta-b", "")).metadata
    assert dict(metadata) == {"a": "1", "b": ""}
    with pytest.raises(TypeError):
        metadata["b"] = "2"


@pytest.mark.parametrize(
    ("lines", "limit"),
    [
        ([(f"x-dynamo-meta-{index}", "v") for index in range(METADATA_ENTRIES)] * 2, "64 entries"),
        (
            [("x-dynamo-meta-long", "v" * (METADATA_BYTES - len("long") - 4)), ("x-dynamo-meta-é", "ü")],
            "65536 bytes",
        ),
    ],
    ids=["entries", "bytes"],
)
def test_as_much_metadata_as_allowed_is_taken_and_one_more_is_not(
    lines: list[tuple[str, str]], limit: str
) -> None:
    assert len(read(*lines).metadata) == len(set(lines))
    with pytest.raises(MetadataTooLarge, match=limit):
        read(*lines, ("x-dynamo-meta-m", ""))


def test_headers_without_context_cost_one_call_each_at_most() -> None:
    assert calls_of(lambda: read_context(ORDINARY)) <= len(ORDINARY) + 5


@pytest.mark.parametrize("kind", KINDS)
async def test_too_much_metadata_is_a_431_in_the_dialect_and_reaches_no_worker(kind: str) -> None:
    headers = {f"x-dynamo-meta-{index}": "v" for index in range(METADATA_ENTRIES + 1)}
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url) as gateway:
        reply = await gateway.client.post(KINDS[kind], json=body_of(kind), headers=headers)
        assert reply.status_code == 431
        assert "64 entries" in reply.json()["error"]["message"]
        assert len(reply.json()["error"]) == (1 if kind == "sglang" else 4)
        assert not generates(sim)


@pytest.mark.parametrize("kind", KINDS)
async def test_context_headers_reach_the_worker_and_only_the_session_reaches_the_log(
    kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    sent = {
        "x-dynamo-session-id": "session-7",
        "x-dynamo-meta-tenant": "a-secret",
        "x-smg-routing-key": "routing-9",
        "traceparent": "00-1-2-01",
    }
    async with SimServer(kind, SimConfig()) as sim, rig(sim.url, access_log=True) as gateway:
        assert (await gateway.client.post(KINDS[kind], json=body_of(kind), headers=sent)).status_code == 200
        await gateway.client.post(KINDS[kind], content=b"{", headers=sent)
        [arrival] = generates(sim)
        assert {name: arrival.header(name) for name in sent} == sent
    written = capfd.readouterr().out
    assert [json.loads(line)["session_id"] for line in written.splitlines()] == ["session-7"] * 2
    assert "a-secret" not in written and "routing-9" not in written
