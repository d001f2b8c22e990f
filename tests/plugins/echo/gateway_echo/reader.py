"""Readers of the sample dialect.

Owns: what a line or a reply means. Must never enter: requests, HTTP.
"""

from __future__ import annotations

import json
from typing import Any

from gateway.errors import GatewayError, UpstreamIncomplete, UpstreamMalformed
from gateway.formats.base import Ids, ReplyFacts


class LinesReader:
    """Passes whole lines on; the one that says why is the last."""

    streaming = True

    def __init__(self, ids: Ids) -> None:
        self.facts = ReplyFacts()
        self.identity = not ids.private
        self._ids = ids
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        *lines, self._rest = (self._rest + data).split(b"\n")
        return b"".join(self._take(line) + b"\n" for line in lines)

    def finish(self) -> bytes:
        if not self.facts.terminal or self._rest:
            raise UpstreamIncomplete("The server stopped before it had said all")
        return b""

    def fail(self, error: GatewayError) -> bytes:
        return json.dumps({"problem": error.message}).encode() + b"\n"

    def _take(self, line: bytes) -> bytes:
        found = _object(line)
        self.facts.tokens += "word" in found
        if "why" in found:
            self.facts.finish_reasons.append(str(found["why"]))
            self.facts.terminal = True
        return _mapped(line, self._ids)


class WholeReader:
    """Holds a reply until it is whole; ``checked``: it has to be a JSON object."""

    streaming = False

    def __init__(self, ids: Ids, *, checked: bool) -> None:
        self.facts = ReplyFacts()
        self.identity = not (checked and ids.private)
        self._ids = ids
        self._checked = checked
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        self._held += data
        return b""

    def finish(self) -> bytes:
        if not self._checked:
            return self._held
        found = _object(self._held)
        self.facts.tokens = len(found.get("said", ()))
        self.facts.finish_reasons.append(str(found.get("why")))
        self.facts.terminal = True
        return _mapped(self._held, self._ids)

    def fail(self, error: GatewayError) -> bytes:
        return b""


def _mapped(data: bytes, ids: Ids) -> bytes:
    return data.replace(json.dumps(ids.dispatch[0]).encode(), json.dumps(ids.public[0]).encode())


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UpstreamMalformed("The server sent something that is not JSON", cause=error) from error
    if not isinstance(found, dict):
        raise UpstreamMalformed("The server sent JSON that is not an object")
    return found
