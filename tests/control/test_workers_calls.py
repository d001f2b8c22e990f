"""Reading what a call of the workers API asks for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from fastapi import Request

from gateway.control.workers_calls import BODY_LIMIT, CallError, call_fields, parse_record, worker_keys


def call(body: bytes = b"", query: bytes = b"", raw_path: bytes = b"/workers") -> Request:
    sent = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return sent.pop(0)

    return Request({"type": "http", "raw_path": raw_path, "query_string": query, "headers": []}, receive)


def json_of(**members: Any) -> bytes:
    return json.dumps(members).encode()


@pytest.mark.parametrize(
    ("body", "query", "members"),
    [
        (b"", b"", {}),
        (b" \n", b"", {}),
        (json_of(url="http://a:1"), b"", {"url": "http://a:1"}),
        (b"", b"url=http://a:1", {"url": "http://a:1"}),
        (b"", b"url=http%3A%2F%2Fa%3A1%2Fp%2520q", {"url": "http://a:1/p%20q"}),
        (json_of(url="http://a:1", priority=1), b"url=http://b:1", {"url": "http://b:1", "priority": 1}),
        (json_of(model_id="m"), b"", {"model": "m"}),
        (json_of(model_id="m", model="n"), b"", {"model": "n"}),
        (b"", b"bootstrap_port=8998&held=TRUE", {"bootstrap_port": 8998, "held": True}),
        (b"", b"held=0&labels=x&url=", {"held": False}),
        (b"", b"cordoned=1", {"cordoned": True}),
        (b"", b"priority=high&held=maybe", {"priority": "high", "held": "maybe"}),
        (json_of(cost=1.5, api_key="k"), b"", {"cost": 1.5, "api_key": "k"}),
    ],
)
async def test_members_of_a_call(body: bytes, query: bytes, members: Mapping[str, Any]) -> None:
    """From JSON and query, the query first; names of other routers are understood."""
    assert await call_fields(call(body, query)) == members


@pytest.mark.parametrize(
    ("sent", "code", "status", "why"),
    [
        (call(b"{"), "invalid_json", 400, "Expecting property name"),
        (call(b"[]"), "invalid_json", 400, "must be a JSON object"),
        (call(b"null"), "invalid_json", 400, "must be a JSON object"),
        (call(b'{"a":"\xff"}'), "invalid_json", 400, "not valid UTF-8"),
        (call(b"[" * 100_000), "invalid_json", 400, "nested too deeply"),
        (call(b"9" * 5000), "invalid_json", 400, "too many digits"),
        (call(b" " * (BODY_LIMIT + 1)), "body_too_large", 413, "larger than the limit"),
        (call(query=b"&".join(b"a=1" for _ in range(101))), "invalid_query", 400, "too many members"),
    ],
    ids=["cut", "list", "null", "not UTF-8", "nested", "digits", "large", "many members"],
)
async def test_invalid_call_is_an_error_of_the_client(
    sent: Request, code: str, status: int, why: str
) -> None:
    with pytest.raises(CallError, match=why) as caught:
        await call_fields(sent)
    assert (caught.value.code, caught.value.status) == (code, status)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({}, "url is missing"),
        ({"url": "http://a:1", "bootstrap_port": "x"}, "bootstrap_port must be an integer"),
        ({"url": "http://me:secret@a:1"}, "credentials"),
        ({"url": "http://a:1", "held": "\ud800"}, "held must be true or false"),
        ({"url": "http://a:1", "token_budget": {"\ud800": 1}}, "token_budget: \ud800: no such member"),
    ],
)
def test_error_names_the_member_at_fault(members: dict[str, Any], message: str) -> None:
    with pytest.raises(CallError) as caught:
        parse_record(members)
    reply = caught.value.reply()
    error = json.loads(bytes(reply.body))["error"]
    assert (reply.status_code, error["type"], error["code"]) == (400, "Bad Request", "invalid_worker")
    assert message in error["message"] and "secret" not in error["message"]


@pytest.mark.parametrize(
    ("key", "raw", "meant"),
    [
        ("abc", b"/workers/abc", "abc"),
        ("http://a:1", b"/workers/http%3A%2F%2Fa%3A1", "http://a:1"),
        ("http://a:1", b"/workers/http://a:1", "http://a:1"),
        ("http:/a:1", b"/workers/http:/a:1", "http://a:1"),
        ("http://a:1/p q", b"/workers/http://a:1/p%20q", "http://a:1/p%20q"),
        ("http://a:1/p%20q", b"/workers/http%3A%2F%2Fa%3A1%2Fp%2520q", "http://a:1/p%20q"),
    ],
)
def test_key_at_the_end_of_a_path(key: str, raw: bytes, meant: str) -> None:
    """An id, an encoded URL, a plain URL, and one in which a proxy removed a slash."""
    assert meant in worker_keys(call(raw_path=raw), key)
