"""The join reader: turns a stream of events into the unary reply.

Owns: what an event adds to the reply and to the facts, the error reply in place of an error event. Must never
enter: how the reply is written (merged_reply.py), what a rule does (merged_object.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from gateway.errors import GatewayError, UpstreamIncomplete, UpstreamMalformed
from gateway.formats import routing_data
from gateway.formats.contract import Ids, Reader, ReplyFacts, ReplyHead, WorkerView, header
from gateway.formats.paths import cut_paths
from gateway.formats.sse import DEFAULT_EVENT_LIMIT, EventScanner, payload
from gateway.formats.vllm.ending import ending_of
from gateway.formats.vllm.ids import RequestIdMapper
from gateway.formats.vllm.join.merged_object import NULL, Members, encode_values, members_of
from gateway.formats.vllm.join.merged_reply import MergedReply
from gateway.formats.vllm.join.merged_sample import UsualEvent
from gateway.formats.vllm.lenient import check_utf8, count_items
from gateway.formats.vllm.progress import Progress
from gateway.formats.vllm.reader import is_stream, reader
from gateway.formats.vllm.reply import Usage
from gateway.formats.vllm.request import Request

_CHOICES = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_INDEX = msgspec.json.Decoder(int)
_REASON = msgspec.json.Decoder(str)
_USAGE = msgspec.json.Decoder(Usage)
_USUAL = msgspec.json.Decoder(UsualEvent)


def join(  # noqa: PLR0913 - the contract's four, and two settings
    request: Request,
    worker: WorkerView,
    ids: Ids,
    head: ReplyHead,
    *,
    passthrough: bool,
    event_limit: int = DEFAULT_EVENT_LIMIT,
) -> Reader:
    """Return the join reader for a reply with this head, the relay reader for one that is no stream."""
    if not is_stream(head):
        return reader(request, ids, head, passthrough=passthrough, event_limit=event_limit)
    context = {"model": _model(request, worker), "created": _created(head)}
    return JoinReader(request, ids, context, EventScanner(event_limit), passthrough=passthrough)


def _model(request: Request, worker: WorkerView) -> str | None:
    """Return the model that the engine names: the adapter that was requested, else the first of its own
    names.
    """
    info = worker.info
    if info is None or not info.models or request.model in info.adapters:
        return request.model
    return info.models[0]


def _created(head: ReplyHead) -> int | None:
    """Return the time at which the reply began by the engine's own clock, in seconds, None without a date."""
    date = header(head.headers, b"date")
    try:
        return None if date is None else int(parsedate_to_datetime(date.decode("latin-1")).timestamp())
    except (ValueError, OverflowError):
        return None


class JoinReader:
    """A reader that returns nothing before ``finish``, then the unary reply.

    If the stream contained an error, the reply is the error alone, as it is without a stream, and
    ``facts.error_status`` the status that it would have had.
    """

    __slots__ = (
        "_closed",
        "_error",
        "_mapper",
        "_passthrough",
        "_progress",
        "_prompt_tokens",
        "_reply",
        "_scanner",
        "facts",
    )

    streaming = False
    identity = False

    def __init__(
        self,
        request: Request,
        ids: Ids,
        context: Mapping[str, str | int | None],
        scanner: EventScanner,
        *,
        passthrough: bool,
    ) -> None:
        self._progress = Progress(request.samples)
        self.facts: ReplyFacts = self._progress.facts
        self._mapper = RequestIdMapper(ids) if ids.private else None
        self._passthrough = passthrough
        self._prompt_tokens = request.prompt_tokens or 0
        self._scanner = scanner
        self._reply = MergedReply(context)
        self._error: bytes | None = None
        self._closed = False

    def feed(self, data: bytes) -> bytes:
        if not self._closed:
            self._closed = any(self._take(found) for _, found in self._scanner.feed(data))
        return b""

    def finish(self) -> bytes:
        self._end()
        facts = self.facts
        facts.ending = ending_of(facts)
        if self._error is not None:
            return self._error
        prompt = self._prompt_tokens if facts.prompt_tokens is None else facts.prompt_tokens
        return self._reply.body(prompt, facts.tokens, self._mapper)

    def fail(self, error: GatewayError) -> bytes:
        return b""

    def _end(self) -> None:
        """Raise UpstreamIncomplete unless the reply is complete."""
        rest = b"" if self._closed else self._scanner.pending
        try:
            if rest:
                self._take(payload(rest))
        except UpstreamMalformed as error:
            raise UpstreamIncomplete("The worker's stream ended inside an event") from error
        unfinished = self._reply.samples.keys() - self._progress.finished
        if not self.facts.terminal or (unfinished and self._error is None):
            raise UpstreamIncomplete("The worker's stream ended before the reply was finished")

    def _take(self, data: bytes | None) -> bool:
        """Add the data of one event. Return True for ``[DONE]``. Raises UpstreamMalformed."""
        if data is None:
            return False
        if data == b"[DONE]":
            return True
        try:
            check_utf8(data)
            if not self._read_usual(data):
                self._read(dict(members_of(data)))
        except UpstreamMalformed as error:
            self._broken(error)
        except (ValueError, RecursionError) as error:
            self._broken(UpstreamMalformed("The worker sent something that cannot be read", cause=error))
        return False

    def _broken(self, error: UpstreamMalformed) -> None:
        """Raise ``error``, unless it follows the terminal event."""
        if not self.facts.terminal:
            raise error

    def _read_usual(self, data: bytes) -> bool:
        try:
            (choice,) = _USUAL.decode(data).choices
        except (msgspec.MsgspecError, RecursionError):
            return False
        sample = self._reply.samples.get(choice.index)
        if sample is None or not sample.add_usual(choice):
            return False
        self.facts.tokens += count_items(choice.token_ids) or 0
        return True

    def _read(self, members: dict[str, msgspec.Raw | bytes]) -> None:
        choices = bytes(members.pop("choices", NULL))
        usage = bytes(members.pop("usage", NULL))
        error = bytes(members.pop("error", NULL))
        if routing_data.NAME in members:
            routing_data.note(bytes(members.pop(routing_data.NAME)), self.facts)
        self._reply.add(members)
        total = True
        for position, choice in enumerate(_choices_of(choices)):
            total = False
            self._choice(choice, position)
        if usage != NULL:
            self._count(usage, total=total)
        if error != NULL:
            self._fail(json.loads(error))

    def _choice(self, members: Members, position: int) -> None:
        index = _index_of(members, position)
        self._reply.sample(index).add(members)
        self.facts.tokens += count_items(members.get("token_ids", NULL)) or 0
        if (reason := _reason_of(members)) is not None:
            self._progress.finish(index, reason)

    def _count(self, text: bytes, *, total: bool) -> None:
        try:
            usage: Usage | None = _USAGE.decode(text)
        except msgspec.MsgspecError:
            usage = Usage.of(json.loads(text))
        if usage is None:
            return
        self._progress.usage(usage, total=total)
        self._reply.count(members_of(text), total=total)

    def _fail(self, error: Any) -> None:
        """Make the error reply; the engine writes an error without spaces where it is no event."""
        status = self._progress.error(error)
        body = _compact({"error": error})
        self._error = cut_paths(body) if status >= 500 and not self._passthrough else body


def _choices_of(text: bytes) -> list[Any]:
    if text == NULL:
        return []
    try:
        return _CHOICES.decode(text)
    except msgspec.MsgspecError:
        found = json.loads(text)
    return (
        [encode_values(item) for item in found if isinstance(item, dict)] if isinstance(found, list) else []
    )


def _index_of(members: Members, position: int) -> int:
    try:
        return _INDEX.decode(members.get("index", NULL))
    except msgspec.MsgspecError:
        return position


def _reason_of(members: Members) -> str | None:
    text = bytes(members.get("finish_reason", NULL))
    if text == NULL:
        return None
    try:
        return _REASON.decode(text)
    except msgspec.MsgspecError:
        return str(json.loads(text))


def _compact(found: Any) -> bytes:
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return json.dumps(found, separators=(",", ":")).encode()
