"""The facts in SGLang's reply documents: one per sample, in a list, or one per event.

Owns: which members of a reply mean what (SGLang 0.5.22). Must never enter: framing, bytes of the reply as
they are relayed.

A document is decoded into typed structs first and, if one of the few members that are read has an unusual
type, or the text is JSON to Python's ``json`` only (NaN, Infinity, unpaired surrogates), generically: an
unusual reply is relayed, only one that is no JSON is not.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from gateway.errors import UpstreamMalformed
from gateway.formats import routing_data
from gateway.formats.contract import ReplyFacts
from gateway.formats.sglang.raw_members import NULL
from gateway.formats.sglang.reply import ABSENT, Document, Finish, Meta

_NOTHING = Meta()

_decode = msgspec.json.Decoder(Document).decode
_decode_list = msgspec.json.Decoder(list[Document]).decode


class Tally:
    """The sum of the documents of one reply.

    ``samples`` is the number of its samples, ``samples_per_prompt`` of them for each prompt. Token counts in
    a document are running totals of its sample, whatever the stream mode. ``error_event``: an error stood in
    place of a document, and nothing follows it. An error in one sample does not end the others. The
    first of several failures counts. The facts are added to ``facts``, None: new ones.
    """

    __slots__ = ("_counted", "_samples_per_prompt", "_finished", "_samples", "error_event", "facts")

    def __init__(self, samples: int, samples_per_prompt: int, facts: ReplyFacts | None = None) -> None:
        self.facts = ReplyFacts(terminal=samples == 0) if facts is None else facts
        self.error_event = False
        self._samples = samples
        self._samples_per_prompt = samples_per_prompt
        self._finished: set[int] = set()
        self._counted: dict[int, Meta] = {}

    def event(self, data: bytes) -> int | None:
        """Add the document of one event, and return the status of a failure in it.

        Raises UpstreamMalformed if it is no JSON object.
        """
        return self.add(document_of(data))

    def running(self, index: int, tokens: int, prompt: tuple[int, int]) -> bool:
        """Add the token count of an event that has no other news. Return False if it has.

        ``prompt`` are its counts of prompt tokens and of cached ones.
        """
        facts = self.facts
        if self._samples == 1:
            if prompt != (facts.prompt_tokens, facts.cached_tokens):
                return False
            if tokens > facts.tokens:
                facts.tokens = tokens
            return True
        counted = self._counted.get(index)
        if counted is None or prompt != (counted.prompt_tokens, counted.cached_tokens):
            return False
        if tokens > counted.completion_tokens:
            facts.tokens += tokens - counted.completion_tokens
            counted.completion_tokens = tokens
        return True

    def reply(self, data: bytes) -> None:
        """Add a complete unary reply. Raises UpstreamMalformed if it is neither an object nor a list."""
        for position, document in enumerate(_documents(data)):
            self.add(document, position)
        self.facts.terminal = True

    def add(self, document: Document, position: int = 0) -> int | None:
        """Add a document. Return the status of the failure that it reports, else None."""
        meta = document.meta_info
        failure = None
        if document.error is not ABSENT and document.error != NULL:
            self.error_event = self.error_event or self.facts.error_status is None
            self.facts.terminal = True
            failure = self._failed(_code(document.error))
        if meta is None:
            return failure
        index = position if document.index is None else document.index
        if meta.finish_reason is not None:
            status = self._finish(index, meta.finish_reason)
            if status is not None:
                # The counters of an exchange that was refused late are invented by the engine.
                return status
        if self._samples == 1:
            self._count(meta)
        else:
            self._count_one_of_many(index, meta)
        return failure

    def _count(self, meta: Meta) -> None:
        facts = self.facts
        if meta.completion_tokens > facts.tokens:
            facts.tokens = meta.completion_tokens
        if meta.prompt_tokens is not None:
            facts.prompt_tokens = meta.prompt_tokens
        if meta.cached_tokens is not None:
            facts.cached_tokens = meta.cached_tokens

    def _count_one_of_many(self, index: int, meta: Meta) -> None:
        before = self._counted.get(index, _NOTHING)
        self._counted[index] = meta
        meta.completion_tokens = max(meta.completion_tokens, before.completion_tokens)
        self.facts.tokens += meta.completion_tokens - before.completion_tokens
        if meta.prompt_tokens is None:
            meta.prompt_tokens = before.prompt_tokens
        if meta.cached_tokens is None:
            meta.cached_tokens = before.cached_tokens
        if index % self._samples_per_prompt == 0:
            # The other samples of a prompt repeat its counts.
            self._count_prompt(meta, before)

    def _count_prompt(self, meta: Meta, before: Meta) -> None:
        facts = self.facts
        if meta.prompt_tokens is not None:
            facts.prompt_tokens = (
                (facts.prompt_tokens or 0) + meta.prompt_tokens - (before.prompt_tokens or 0)
            )
        if meta.cached_tokens is not None:
            facts.cached_tokens = (
                (facts.cached_tokens or 0) + meta.cached_tokens - (before.cached_tokens or 0)
            )

    def _finish(self, index: int, finish: Finish) -> int | None:
        """Record that a sample ended. Return the status of the error if it ended in one."""
        if index not in self._finished:
            self._finished.add(index)
            self.facts.finish_reasons.append(finish.type)
        if len(self._finished) >= self._samples:
            self.facts.terminal = True
        status = finish.status_code
        return self._failed(status) if status is not None and 400 <= status <= 599 else None

    def _failed(self, status: int) -> int:
        if self.facts.error_status is None:
            self.facts.error_status = status
        return status


def document_of(data: bytes) -> Document:
    """Return the document of one event. Raises UpstreamMalformed if it is no JSON object."""
    try:
        document = _decode(data)
        # msgspec does not decode the strings it skips, so that they are UTF-8 is checked here.
        if not data.isascii():
            data.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _unusual(_generic(data, dict))
    return document


def _documents(data: bytes) -> list[Document]:
    try:
        documents = _decode_list(data) if data.lstrip()[:1] == b"[" else [_decode(data)]
        if not data.isascii():
            data.decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        document = _generic(data, dict | list)
        documents = [_unusual(item) for item in (document if isinstance(document, list) else [document])]
    return documents


def _generic(data: bytes, kind: Any) -> Any:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UpstreamMalformed("The worker sent a reply that is not valid JSON.", cause=error) from error
    if not isinstance(document, kind):
        raise UpstreamMalformed("The worker sent a reply of an unknown shape.")
    return document


def _unusual(document: Any) -> Document:
    """Return what can be read of a document that has a member of an unusual type."""
    if not isinstance(document, dict):
        return Document()
    error = document.get("error")
    return Document(
        meta_info=_unusual_meta(document.get("meta_info")),
        index=_integer(document.get("index")),
        error=ABSENT if error is None else msgspec.Raw(json.dumps(error).encode()),
        routing_data=NULL if routing_data.NAME in document else ABSENT,
    )


def _unusual_meta(meta: Any) -> Meta | None:
    if not isinstance(meta, dict):
        return None
    return Meta(
        finish_reason=_unusual_finish(meta.get("finish_reason")),
        completion_tokens=_integer(meta.get("completion_tokens")) or 0,
        prompt_tokens=_integer(meta.get("prompt_tokens")),
        cached_tokens=_integer(meta.get("cached_tokens")),
    )


def _unusual_finish(finish: Any) -> Finish | None:
    if finish is None:
        return None
    if not isinstance(finish, dict):
        return Finish(finish if isinstance(finish, str) else "")
    reason = finish.get("type")
    return Finish(reason if isinstance(reason, str) else "", _integer(finish.get("status_code")))


def _integer(value: Any) -> int | None:
    return value if type(value) is int else None


def _code(error: msgspec.Raw) -> int:
    """Return the status that an engine's error object names, 500 if it names none."""
    try:
        detail = json.loads(bytes(error))
    except (ValueError, RecursionError):
        return 500  # a number of thousands of digits, or too deep a nesting
    code = _integer(detail.get("code")) if isinstance(detail, dict) else None
    return code if code is not None and 400 <= code <= 599 else 500
