"""Heads and spellings that the models of all engines share."""

from __future__ import annotations

import json
from typing import Any

from gateway.formats.contract import ReplyHead

DONE = b"data: [DONE]\n\n"
EVENTS = ReplyHead(200, [(b"content-type", b"text/event-stream; charset=utf-8")])
JSON = ReplyHead(200, [(b"content-type", b"application/json")])


def compact(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def event(document: Any) -> bytes:
    return b"data: %b\n\n" % compact(document)
