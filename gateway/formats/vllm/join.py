"""The join reader: a stream becomes the reply that the engine gives to the same request without one.

Owns: the order of a joined reply, what no event carries, an error in a stream as the error reply it would
have been. Must never enter: what a rule does (``fold``), which key has which rule (``rules``).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from gateway.errors import GatewayError, UpstreamIncomplete, UpstreamMalformed
from gateway.formats.base import Ids, Reader, ReplyFacts, ReplyHead, WorkerView, header
from gateway.formats.paths import cut_paths
from gateway.formats.sse import EventScanner, payload
from gateway.formats.vllm.ending import ending_of, ending_of_failure
from gateway.formats.vllm.fold import NULL, Fold, Members, Parts, members_of, spelled
from gateway.formats.vllm.ids import IdMapper
from gateway.formats.vllm.lenient import check_utf8, count_items
from gateway.formats.vllm.progress import Progress
from gateway.formats.vllm.projection import Request
from gateway.formats.vllm.reader import ROUTING, is_stream, reader
from gateway.formats.vllm.reply import Usage
from gateway.formats.vllm.rules import REPLY, SHARED_END, USAGE, WITH_NULLS, Rule
from gateway.formats.vllm.sample import Sample, UsualEvent

_CHOICES = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_INDEX = msgspec.json.Decoder(int)
_REASON = msgspec.json.Decoder(str)
_USAGE = msgspec.json.Decoder(Usage)
_USUAL = msgspec.json.Decoder(UsualEvent)


def join(request: Request, worker: WorkerView, ids: Ids, head: ReplyHead, *, passthrough: bool) -> Reader:
    """The join reader for a reply with this head; the relay reader for one that is no stream."""
    if not is_stream(head):
        return reader(request, ids, head, passthrough=passthrough)
    given = {"model": _model(request, worker), "created": _created(head)}
    return JoinReader(request, ids, given, passthrough=passthrough)


def _model(request: Request, worker: WorkerView) -> str | None:
    """The engine names the adapter that was asked for, else the first of its own names."""
    info = worker.info
    if info is None or not info.models or request.model in info.adapters:
        return request.model
    return info.models[0]


def _created(head: ReplyHead) -> int | None:
    """The engine's own clock, in seconds, as its reply began."""
    date = header(head.headers, b"date")
    try:
        return None if date is None else _seconds(parsedate_to_datetime(date.decode("latin-1")))
    except (ValueError, OverflowError):
        return None


def _seconds(date: datetime) -> int:
    return int(date.timestamp())


class JoinReader:
    """Gives nothing before ``finish``, then the whole reply.

    Where the stream held an error, the reply is the error alone, as it is without a stream, and
    ``facts.error_status`` the status that it would have come with.
    """

    __slots__ = (
        "_closed",
        "_error",
        "_given",
        "_mapper",
        "_passthrough",
        "_progress",
        "_prompt_tokens",
        "_reply",
        "_samples",
        "_scanner",
        "_usage",
        "facts",
    )

    streaming = False
    identity = False

    def __init__(
        self, request: Request, ids: Ids, given: dict[str, str | int | None], *, passthrough: bool
    ) -> None:
        self._progress = Progress(request.samples)
        self.facts: ReplyFacts = self._progress.facts
        self._mapper = IdMapper(ids) if ids.private else None
        self._given = given
        self._passthrough = passthrough
        self._prompt_tokens = request.prompt_tokens or 0
        self._scanner = EventScanner()
        self._reply = Fold(REPLY)
        self._samples: dict[int, Sample] = {}
        self._usage: dict[str, bytes] = {}
        self._error: bytes | None = None
        self._closed = False

    def feed(self, data: bytes) -> bytes:
        if not self._closed:
            try:
                self._closed = any(map(self._take, self._scanner.feed(data)))
            except UpstreamMalformed as error:
                self.facts.ending = ending_of_failure(error)
                raise
        return b""

    def finish(self) -> bytes:
        try:
            self._end()
        except UpstreamIncomplete as error:
            self.facts.ending = ending_of_failure(error)
            raise
        self.facts.ending = ending_of(self.facts)
        return self._body() if self._error is None else self._error

    def fail(self, error: GatewayError) -> bytes:
        self.facts.ending = self.facts.ending or ending_of_failure(error)
        return b""

    def _end(self) -> None:
        """Raises UpstreamIncomplete unless all was said."""
        rest = b"" if self._closed else self._scanner.pending
        try:
            if rest:
                self._take(rest)
        except UpstreamMalformed as error:
            raise UpstreamIncomplete("The worker's stream ended inside an event") from error
        unfinished = self._samples.keys() - self._progress.finished
        if not self.facts.terminal or (unfinished and self._error is None):
            raise UpstreamIncomplete("The worker's stream ended before the reply was finished")

    def _take(self, event: bytes) -> bool:
        """Take one event in; True for ``[DONE]``. Raises UpstreamMalformed."""
        data = payload(event)
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
        """After the terminal event nothing can be malformed any more."""
        if not self.facts.terminal:
            raise error

    def _read_usual(self, data: bytes) -> bool:
        try:
            (choice,) = _USUAL.decode(data).choices
        except (msgspec.MsgspecError, RecursionError):
            return False
        sample = self._samples.get(choice.index)
        if sample is None or not sample.add_usual(choice):
            return False
        self.facts.tokens += count_items(choice.token_ids) or 0
        return True

    def _read(self, members: dict[str, msgspec.Raw | bytes]) -> None:
        choices = bytes(members.pop("choices", NULL))
        usage = bytes(members.pop("usage", NULL))
        error = bytes(members.pop("error", NULL))
        if ROUTING in members:
            self._progress.routing(bytes(members.pop(ROUTING)))
        self._reply.add(members)
        total = True
        for place, choice in enumerate(_choices_of(choices)):
            total = False
            self._choice(choice, place)
        if usage != NULL:
            self._count(usage, total=total)
        if error != NULL:
            self._fail(json.loads(error))

    def _choice(self, members: Members, place: int) -> None:
        index = _index_of(members, place)
        sample = self._samples.get(index)
        if sample is None:
            sample = self._samples[index] = Sample()
        sample.add(members)
        self.facts.tokens += count_items(members.get("token_ids", NULL)) or 0
        if (reason := _reason_of(members)) is not None:
            self._progress.finish(index, reason)

    def _count(self, text: bytes, *, total: bool) -> None:
        """Usage of all, or of one sample so far, which tells of the prompt only."""
        try:
            usage: Usage | None = _USAGE.decode(text)
        except msgspec.MsgspecError:
            usage = Usage.of(json.loads(text))
        if usage is None:
            return
        self._progress.usage(usage, total=total)
        for key, raw in members_of(text).items():
            if (total or key.startswith("prompt_")) and (value := bytes(raw)) != NULL:
                self._usage[key] = value

    def _fail(self, error: Any) -> None:
        """The engine spells an error without blanks where it is no event."""
        status = self._progress.error(error)
        body = _compact({"error": error})
        self._error = cut_paths(body) if status >= 500 and not self._passthrough else body

    def _body(self) -> bytes:
        head = b"".join(self._head())
        parts: Parts = [head if self._mapper is None else self._mapper.whole(head), b'"choices":[']
        for place, index in enumerate(sorted(self._samples)):
            parts += (b"," if place else b"", *self._samples[index].parts())
        return b"".join((*parts, b"]}"))

    def _head(self) -> Iterator[bytes | bytearray]:
        """All but the choices, each member with its comma."""
        yield b"{"
        told = {key: self._reply.take(key) for key in REPLY}
        for key, rule in REPLY.items():
            if key == SHARED_END and (unknown := self._reply.members()):
                yield from (*unknown, b",")
            if rule is not Rule.PER_INDEX:
                yield from (b'"%b":' % key.encode(), *self._value(key, rule, told[key]), b",")

    def _value(self, key: str, rule: Rule, told: Parts) -> Parts:
        if rule is Rule.COUNTED:
            return [self._total()]
        if rule is Rule.GIVEN and told == [NULL]:
            return [msgspec.json.encode(self._given[key])]
        if key == SHARED_END and told == [NULL]:
            return [b'"tokens"']
        return [_whole(key, b"".join(told))] if key in WITH_NULLS else told

    def _total(self) -> bytes:
        """``usage``: what the engine counted, the rest from the request and the tokens seen."""
        found = self._usage
        prompt = self.facts.prompt_tokens
        prompt = self._prompt_tokens if prompt is None else prompt
        counted = {
            "prompt_tokens": prompt,
            "total_tokens": prompt + self.facts.tokens,
            "completion_tokens": self.facts.tokens,
        }
        keys = [*USAGE, *(key for key in found if key not in USAGE)]
        return _object(
            (key, _whole(key, found.get(key) or msgspec.json.encode(counted.get(key)))) for key in keys
        )


def _whole(key: str, value: bytes) -> bytes:
    """``value`` with the nulls that an event leaves out."""
    names = WITH_NULLS.get(key, ())
    if not names or not value.startswith(b"{"):
        return value
    found = members_of(value)
    return _object((name, bytes(found.get(name, NULL))) for name in dict.fromkeys((*names, *found)))


def _object(members: Iterable[tuple[str, bytes]]) -> bytes:
    return b"{%b}" % b",".join(b"%b:%b" % (msgspec.json.encode(key), value) for key, value in members)


def _choices_of(text: bytes) -> list[Any]:
    if text == NULL:
        return []
    try:
        return _CHOICES.decode(text)
    except msgspec.MsgspecError:
        found = json.loads(text)
    return [spelled(item) for item in found if isinstance(item, dict)] if isinstance(found, list) else []


def _index_of(members: Members, place: int) -> int:
    try:
        return _INDEX.decode(members.get("index", NULL))
    except msgspec.MsgspecError:
        return place


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
