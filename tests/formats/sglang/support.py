"""Requests, readers and events for the tests of this format."""

from __future__ import annotations

import json
from typing import Any

from gateway.formats.contract import Headers, Ids, Reader, ReplyHead
from gateway.formats.sglang import FORMAT as SGLANG
from gateway.formats.sglang.request import SglangRequest
from tests.formats.support import EVENTS, JSON, View, compact, run_steps

FORMAT = SGLANG

#: Members that may differ between two replies to one request, and ids that the engine creates.
TIMINGS = frozenset(
    {
        "response_sent_to_client_ts",
        "queue_time",
        "forward_entry_time",
        "prefill_finished_time",
        "storage_prefetch_wait",
        "storage_staging_wait",
        "e2e_latency",
        "request_received_ts",
        "first_token_latency",
        "api_server_dispatch_finish_ts",
        "request_finished_ts",
        "decode_throughput",
    }
)


def parsed(body: bytes | dict[str, Any], headers: Headers = (), *, steps: bool = False) -> SglangRequest:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return run_steps(FORMAT.parse_in_steps(text, headers)) if steps else FORMAT.parse(text, headers)


def same(*names: str) -> Ids:
    return Ids(names, names)


def reading(request: dict[str, Any], ids: Ids | None = None) -> Reader:
    asked = parsed(request)
    head = ReplyHead(200, EVENTS if asked.stream else JSON)
    return FORMAT.reader(asked, View(), ids or same("f" * 32), head)


def document(
    tokens: int = 1, finish: str | dict[str, Any] | None = None, *, rid: str = "a1", **more: Any
) -> dict[str, Any]:
    reason = {"type": finish} if isinstance(finish, str) else finish
    meta = {"id": rid, "finish_reason": reason, "prompt_tokens": 3, "completion_tokens": tokens}
    return {"text": "x", "output_ids": [7] * min(tokens, 5), "meta_info": meta | {"cached_tokens": 2}, **more}


def event(*arguments: Any, **more: Any) -> bytes:
    return b"data: %b\n\n" % compact(document(*arguments, **more))
