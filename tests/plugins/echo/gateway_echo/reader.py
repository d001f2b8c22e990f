"""The reader of the sample format: a reply in lines, or in one piece."""

from __future__ import annotations

import json

from gateway.errors import GatewayError, UpstreamIncomplete, UpstreamMalformed
from gateway.formats.contract import Ending, Ids, ReplyFacts

ENDINGS = {"end": Ending.STOP, "limit": Ending.LENGTH}


class EchoReader:
    """Sends each complete line on, or the whole reply at its end."""

    identity = False

    def __init__(self, ids: Ids, *, streaming: bool) -> None:
        self.facts = ReplyFacts()
        self.streaming = streaming
        self._ids = ids
        self._rest = b""
        self._unsent = b""

    def feed(self, data: bytes) -> bytes:
        self._rest += data
        if not self.streaming:
            return b""
        *lines, self._rest = self._rest.split(b"\n")
        complete = b""
        for line in lines:
            if self.facts.terminal:
                break  # nothing follows the last line
            try:
                self._learn(line)
            except UpstreamMalformed:
                self._unsent = self._with_public_id(complete)
                raise
            complete += line + b"\n"
        return self._with_public_id(complete)

    def finish(self) -> bytes:
        reply = b"" if self.streaming else self._rest
        if not self.streaming:
            self._learn(reply)
        if not self.facts.terminal:
            raise UpstreamIncomplete("the server stopped before the last line")
        return self._with_public_id(reply)

    def fail(self, error: GatewayError) -> bytes:
        if self.facts.terminal or not self.streaming:
            return b""
        line = json.dumps({"problem": error.message, "status": error.status}).encode()
        return self._unsent + line + b"\n"

    def _learn(self, line: bytes) -> None:
        try:
            members = json.loads(line)
            if "problem" in members:
                self.facts.error_status = int(members["status"])
                self.facts.ending = Ending.ERROR_EVENT
                self.facts.terminal = True
                return
            self.facts.tokens += len(members["words"])
            if "reason" in members:
                self.facts.prompt_tokens = int(members["prompt_words"])
                self.facts.finish_reasons.append(str(members["reason"]))
                self.facts.ending = ENDINGS.get(members["reason"], Ending.OTHER)
                self.facts.terminal = True
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UpstreamMalformed("the server sent a line that is not of its dialect") from error

    def _with_public_id(self, data: bytes) -> bytes:
        public, dispatch = (json.dumps(ids[0]).encode() for ids in (self._ids.public, self._ids.dispatch))
        return data.replace(dispatch, public) if self._ids.private else data
