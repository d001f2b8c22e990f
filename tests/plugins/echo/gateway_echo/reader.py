"""Readers of the sample dialect: lines passed on, lines joined, whole replies.

Owns: what a line or a reply means. Must never enter: requests, HTTP.
"""

from __future__ import annotations

import json
from typing import Any

from gateway.errors import GatewayError, UpstreamIncomplete, UpstreamMalformed
from gateway.formats.contract import Ending, Ids, ReplyFacts
from gateway.formats.json.splice import insert_member

ENDINGS = {"end": Ending.STOP, "enough": Ending.LENGTH}


class Lines:
    """What both readers of lines share: where a line ends, and what it tells."""

    def __init__(self) -> None:
        self.facts = ReplyFacts()
        self._rest: list[bytes] = []

    def cut(self, data: bytes) -> list[bytes]:
        """The lines that ``data`` completes."""
        *whole, rest = data.split(b"\n")
        if whole:
            whole[0] = b"".join((*self._rest, whole[0]))
            self._rest.clear()
        if rest:
            self._rest.append(rest)
        return whole

    def take(self, line: bytes) -> dict[str, Any]:
        """Learn from a line. Raises UpstreamMalformed."""
        found = _object(line)
        if "problem" in found:
            status = found.get("status", 500)
            self.facts.error_status = status if type(status) is int else 500
            self.facts.ending = Ending.ERROR_EVENT
            self.facts.terminal = True
        elif "why" in found:
            _learn_end(found, self.facts)
        else:
            self.facts.tokens += len(_words(found))
        return found

    def finish(self) -> None:
        if not self.facts.terminal:
            raise UpstreamIncomplete("The server stopped before it had said all")


class LinesReader:
    """Passes whole lines on; what follows the last of them is dropped."""

    streaming = True
    identity = False

    def __init__(self, ids: Ids) -> None:
        self._lines = Lines()
        self.facts = self._lines.facts
        self._ids = ids
        self._unsent = b""

    def feed(self, data: bytes) -> bytes:
        passed: list[bytes] = []
        try:
            for line in self._lines.cut(data):
                if self.facts.terminal:
                    break
                self._lines.take(line)
                passed += (line, b"\n")
        except UpstreamMalformed:
            # Good lines that came in one read with the bad one: the client gets them with the failure.
            self._unsent = _mapped(b"".join(passed), self._ids)
            raise
        return _mapped(b"".join(passed), self._ids)

    def finish(self) -> bytes:
        self._lines.finish()
        return b""

    def fail(self, error: GatewayError) -> bytes:
        if self.facts.terminal:
            return b""
        told = json.dumps({"problem": error.message, "status": error.status}).encode()
        return self._unsent + told + b"\n"


class JoinReader:
    """Folds lines into the reply that the server gives without them: the last one, and all words."""

    streaming = False
    identity = False

    def __init__(self, ids: Ids) -> None:
        self._lines = Lines()
        self.facts = self._lines.facts
        self._ids = ids
        self._said: list[str] = []
        self._reply = b""

    def feed(self, data: bytes) -> bytes:
        for line in self._lines.cut(data):
            if self.facts.terminal:
                break
            found = self._lines.take(line)
            if not self.facts.terminal:
                self._said += found["said"]
            elif "problem" in found:
                self._reply = json.dumps({"problem": found["problem"]}).encode()
            else:
                # Spliced and not written anew: whatever else the line holds keeps its spelling.
                self._reply = insert_member(line, "said", json.dumps(self._said).encode())
        return b""

    def finish(self) -> bytes:
        self._lines.finish()
        return _mapped(self._reply, self._ids)

    def fail(self, error: GatewayError) -> bytes:
        return b""


class WholeReader:
    """Holds a reply until it is whole, and looks into it."""

    streaming = False

    def __init__(self, ids: Ids) -> None:
        self.facts = ReplyFacts()
        self.identity = not ids.private
        self._ids = ids
        self._held: list[bytes] = []

    def feed(self, data: bytes) -> bytes:
        self._held.append(data)
        return b""

    def finish(self) -> bytes:
        reply = b"".join(self._held)
        found = _object(reply)
        self.facts.tokens = len(_words(found))
        _learn_end(found, self.facts)
        return _mapped(reply, self._ids)

    def fail(self, error: GatewayError) -> bytes:
        return b""


def _learn_end(found: dict[str, Any], facts: ReplyFacts) -> None:
    why, heard = found.get("why"), found.get("heard")
    if not isinstance(why, str):
        raise UpstreamMalformed("The server did not say why it stopped")
    facts.finish_reasons.append(why)
    facts.prompt_tokens = heard if type(heard) is int else None
    facts.ending = ENDINGS.get(why, Ending.OTHER)
    facts.terminal = True


def _words(found: dict[str, Any]) -> list[str]:
    said = found.get("said")
    if not isinstance(said, list) or not all(isinstance(word, str) for word in said):
        raise UpstreamMalformed("The server said something that is no words")
    return said


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UpstreamMalformed("The server sent something that is not JSON") from error
    if not isinstance(found, dict):
        raise UpstreamMalformed("The server sent JSON that is not an object")
    return found


def _mapped(data: bytes, ids: Ids) -> bytes:
    if not ids.private:
        return data
    return data.replace(json.dumps(ids.dispatch[0]).encode(), json.dumps(ids.public[0]).encode())
