"""The join reader: turns a stream of events into the unary reply.

Owns: how each key of the unary reply is made from those of the events. Must never enter: facts, which the
stream's reader finds in the same way.

What a stream does not carry is null: context logits and the parameters of a disaggregated request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any

from gateway.errors import GatewayError, UpstreamIncomplete, UpstreamMalformed
from gateway.formats.contract import Reader, ReplyFacts, ReplyHead
from gateway.formats.paths import cut_paths
from gateway.formats.routing_data import MARK, extract
from gateway.formats.sse import DEFAULT_EVENT_LIMIT, EventScanner, payload
from gateway.formats.trtllm.errors import IN_BAND, envelope
from gateway.formats.trtllm.reader import DONE, Progress, is_stream, read_reply, reader
from gateway.formats.trtllm.request import Request


class MergeRule(Enum):
    """The way a key's value is made from those of the events. A null never replaces a value."""

    APPEND = "lists or texts, one after another"
    FIRST = "the first value"
    LAST = "the latest value; also of unknown keys"
    COUNTED = "from the usage events, or else counted"
    NESTED = "an object with rules of its own"
    PER_INDEX = "one object for each sample, in the order of their indexes"
    COMPUTED = "from the other keys"
    UNSTREAMED = "in no event, so null"


#: The keys of each object, in the order of the unary reply, which has every key whether null or not.
REPLY: Mapping[str, MergeRule] = MappingProxyType(
    {
        "id": MergeRule.FIRST,
        "object": MergeRule.FIRST,
        "created": MergeRule.FIRST,
        "model": MergeRule.FIRST,
        "choices": MergeRule.PER_INDEX,
        "usage": MergeRule.COUNTED,
        "prompt_token_ids": MergeRule.UNSTREAMED,
    }
)
CHOICE: Mapping[str, MergeRule] = MappingProxyType(
    {
        "index": MergeRule.FIRST,
        "text": MergeRule.APPEND,
        "token_ids": MergeRule.APPEND,
        "logprobs": MergeRule.NESTED,
        "context_logits": MergeRule.UNSTREAMED,
        "finish_reason": MergeRule.LAST,
        "stop_reason": MergeRule.LAST,
        "disaggregated_params": MergeRule.UNSTREAMED,
        "avg_decoded_tokens_per_iter": MergeRule.LAST,
    }
)
#: Of each token of the sample, but for the offsets: a chunk counts its own from 0.
LOGPROBS: Mapping[str, MergeRule] = MappingProxyType(
    {
        "text_offset": MergeRule.COMPUTED,
        "token_logprobs": MergeRule.APPEND,
        "tokens": MergeRule.APPEND,
        "top_logprobs": MergeRule.APPEND,
    }
)

Json = dict[str, Any]


def join(
    request: Request, head: ReplyHead, *, passthrough: bool, event_limit: int = DEFAULT_EVENT_LIMIT
) -> Reader:
    """Return the join reader for a reply with this head, the relay reader for one that is no stream."""
    if not is_stream(head):
        return reader(head, passthrough=passthrough, event_limit=event_limit)
    return JoinReader(request, EventScanner(event_limit), passthrough=passthrough)


class JoinReader:
    """A reader that returns nothing before ``finish``, then the unary reply, or the error in its place."""

    __slots__ = (
        "_closed",
        "_error",
        "_new_tokens",
        "_passthrough",
        "_progress",
        "_reply",
        "_request",
        "_samples",
        "_scanner",
        "facts",
    )

    streaming = False
    identity = False

    def __init__(self, request: Request, scanner: EventScanner, *, passthrough: bool) -> None:
        self._progress = Progress()
        self.facts: ReplyFacts = self._progress.facts
        self._request = request
        self._passthrough = passthrough
        self._scanner = scanner
        self._reply: Json = {}
        self._samples: dict[int, Json] = {}
        self._new_tokens = 0
        self._error: Json | None = None
        self._closed = False

    def feed(self, data: bytes) -> bytes:
        if not self._closed:
            self._closed = any(self._take(found) for _, found in self._scanner.feed(data))
        return b""

    def finish(self) -> bytes:
        rest = b"" if self._closed else self._scanner.pending
        try:
            if rest:
                self._take(payload(rest))
        except UpstreamMalformed as error:
            raise UpstreamIncomplete("The worker's stream ended inside an event") from error
        facts = self.facts
        if not facts.terminal:
            raise UpstreamIncomplete("The worker's stream ended before the reply was finished")
        self._progress.end()
        if self._error is not None:
            return self._error_reply(self._error)
        if self._new_tokens and self._progress.counted not in (0, self._new_tokens):
            raise UpstreamMalformed("The worker's stream does not have the tokens that its usage counts")
        if any(sample.get("finish_reason") is None for sample in self._samples.values()):
            raise UpstreamIncomplete("The worker's stream ended before the reply was finished")
        return _compact(self._unary())

    def fail(self, error: GatewayError) -> bytes:
        return b""

    def _take(self, data: bytes | None) -> bool:
        """Add the data of one event. Return True for ``[DONE]``. Raises UpstreamMalformed."""
        if data == DONE:
            self.facts.terminal = True
        if data is None or data == DONE:
            return data == DONE
        try:
            if MARK in data:
                data = extract(data, self.facts) or b"{}"
            reply = read_reply(data)
        except UpstreamMalformed:
            if self.facts.terminal:
                return False
            raise
        self._progress.note(reply)
        self._add(json.loads(data))
        return False

    def _add(self, event: Json) -> None:
        if (error := event.pop("error", None)) is not None:
            self._error = error if isinstance(error, dict) else {"message": str(error)}
        for choice in event.pop("choices", ()):
            self._new_tokens += len(choice.get("token_ids") or ())
            _merge(self._samples.setdefault(choice.get("index", 0), {}), choice, CHOICE)
        event.pop("usage", None)
        _merge(self._reply, event, REPLY)

    def _unary(self) -> Json:
        choices = [self._samples[index] for index in sorted(self._samples)]
        for choice in choices:
            if isinstance(logprobs := choice.get("logprobs"), dict):
                logprobs["text_offset"] = _offsets(logprobs.get("tokens"))
        several = self._request.prompts > 1
        made: Json = {
            "choices": [{**dict.fromkeys(CHOICE), **choice} for choice in choices],
            "usage": self._usage(),
            # The engine gathers the lists of several prompts, of which there are none.
            "prompt_token_ids": [] if several else None,
        }
        return {**dict.fromkeys(REPLY), **self._reply, **made}

    def _usage(self) -> Json:
        facts = self.facts
        prompt = self._request.prompt_tokens if facts.prompt_tokens is None else facts.prompt_tokens
        cached = None if facts.cached_tokens is None else {"cached_tokens": facts.cached_tokens}
        return {
            "prompt_tokens": prompt,
            "total_tokens": None if prompt is None else prompt + facts.tokens,
            "completion_tokens": facts.tokens,
            "prompt_tokens_details": cached,
        }

    def _error_reply(self, error: Json) -> bytes:
        status = self.facts.error_status or 500
        kind, param = error.get("type"), error.get("param")
        body = envelope(str(error.get("message")), str(kind or IN_BAND), param, status)
        return body if self._passthrough else cut_paths(body)


def _merge(into: Json, new: Json, rules: Mapping[str, MergeRule]) -> None:
    for key, value in new.items():
        rule, old = rules.get(key, MergeRule.LAST), into.get(key)
        if value is None:
            into.setdefault(key, None)
        elif rule is MergeRule.NESTED and isinstance(value, dict):
            into[key] = old if isinstance(old, dict) else {}
            _merge(into[key], value, LOGPROBS)
        elif rule is MergeRule.APPEND and isinstance(old, list) and isinstance(value, list):
            old.extend(value)
        elif rule is MergeRule.APPEND and isinstance(old, str) and isinstance(value, str):
            into[key] = old + value
        elif rule is not MergeRule.FIRST or old is None:
            into[key] = value


def _offsets(tokens: Any) -> list[int]:
    """Return the offsets of the tokens' texts as the engine counts them: each adds its own length."""
    offsets: list[int] = []
    for token in tokens if isinstance(tokens, list) else ():
        offsets.append(offsets[-1] + len(str(token)) if offsets else 0)
    return offsets


def _compact(found: Json) -> bytes:
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(found, separators=(",", ":")).encode()
