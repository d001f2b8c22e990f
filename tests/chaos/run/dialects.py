"""The requests of a run as bytes, and the contents of their replies."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple
from zlib import crc32

from gateway.sim.config import SGLANG, SimConfig
from gateway.sim.tokens import Chooser
from tests.support.generate import LIMIT, PROMPT

ABORT_PATHS = {"sglang": "/abort_request", "vllm": "/inference/v1/abort_requests"}
#: The gateway writes this header into its access log.
MARKER_HEADER = "X-Dynamo-Session-Id"
_VLLM_PREFIX = "generate-tokens-"
_MARKER = re.compile(rb'"marker": ?"([^"]+)"')
_RID = re.compile(rb'"(?:rid|request_id)": ?("(?:[^"\\]|\\.)*")')
_CONFIG = SimConfig()


def prompt_of(marker: str, length: int) -> list[int]:
    """Return the prompt of a request; no other request has the same."""
    return [3 + crc32(b"%d %b" % (place, marker.encode())) % 30_000 for place in range(length)]


def output_of(prompt: Sequence[int], tokens: int) -> list[int]:
    """Return the output that every worker generates for a request."""
    vocabulary, eos = _CONFIG.vocab_size, _CONFIG.eos_token_id
    chooser = Chooser(array("I", prompt).tobytes(), vocab_size=vocabulary, eos=eos, eos_rate=0.0, draw=0)
    return [chooser.next(may_end=False, never=frozenset())[0] for _ in range(tokens)]


def body_of(
    kind: str, marker: str, prompt: Sequence[int], tokens: int, *, stream: bool, id: str | None
) -> bytes:
    """Return a request's body, with an ``id`` unless it is None."""
    body: dict[str, Any] = {"marker": marker, PROMPT[kind]: list(prompt), "stream": stream}
    body["sampling_params"] = {LIMIT[kind]: tokens, "temperature": 0}
    if id is not None:
        body["rid" if kind == SGLANG else "request_id"] = id
    return json.dumps(body, ensure_ascii=False).encode()


def abort_of(kind: str, id: str) -> bytes:
    return json.dumps({"rid": id} if kind == SGLANG else {"request_ids": [id]}, ensure_ascii=False).encode()


class Part(NamedTuple):
    """The contents of a reply or an event. ``tokens`` are the new ones, or all so far if ``complete``."""

    id: str
    tokens: list[int]
    finish: str | None
    error: str | None = None
    complete: bool = False


def part_of(kind: str, text: bytes) -> Part:
    """Parse a reply or an event. Raises ValueError if no engine sends it."""
    try:
        summary = json.loads(text)
        if "error" in summary:
            return Part("", [], None, error=json.dumps(summary["error"])[:200])
        if kind != SGLANG:
            choice = summary["choices"][0]
            return Part(summary["request_id"], choice["token_ids"] or [], choice["finish_reason"])
        meta, tokens = summary["meta_info"], summary.get("output_ids") or []
        reason = meta["finish_reason"] or {}
        error = json.dumps(reason)[:200] if reason.get("status_code") is not None else None
        return Part(meta["id"], tokens, reason.get("type"), error, complete=True)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"not a reply: {text[:200]!r}") from error


def public_id(kind: str, id: str) -> str:
    """Return a client's ``id`` as the engine spells it in its replies."""
    return id if kind == SGLANG else _VLLM_PREFIX + id


def marker_of(body: bytes) -> str:
    """Return the marker in a request as a worker reads it, "" without one."""
    found = _MARKER.search(body)
    return found[1].decode() if found else ""


def dispatch_id_of(kind: str, header: str | None, body: bytes) -> str:
    """Return the id by which a worker knows a request."""
    found = _RID.search(body)
    named = json.loads(found[1]) if found else None
    if kind == SGLANG:
        return str(named or header or "")
    return _VLLM_PREFIX + str(header or named or "")
