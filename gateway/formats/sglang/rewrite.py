"""The few things that are taken out of what an engine sends, whatever kind of reply it is.

Owns: a router's note in an event, and file paths in the words of a failure. Must never enter: the id
(swap.py), the stream mode (convert.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.errors import UpstreamMalformed
from gateway.formats.base import ReplyFacts
from gateway.formats.json_splice import member_spans, remove_member
from gateway.formats.paths import cut_paths
from gateway.formats.sglang.members import NULL

#: What the note's name looks like in an event.
ROUTING = b'"routing_data"'
_NAME = "routing_data"
_SERVER_FAILURE = 500

_note = msgspec.json.Decoder(dict[str, Any] | None).decode


class Rewrite:
    """``cut``: file paths are cut from failures whose status is 500 or over."""

    __slots__ = ("cut",)

    def __init__(self, *, cut: bool) -> None:
        self.cut = cut

    def routing(self, document: bytes, facts: ReplyFacts) -> bytes:
        """``document`` without the note a router put into it about its choice, which becomes a fact.

        b"" where nothing else was in it. Raises UpstreamMalformed if the note is no object.
        """
        spans = member_spans(document, _NAME)
        if not spans:
            return document
        start, end = spans[-1]
        try:
            note: Mapping[str, Any] | None = _note(document[start:end])
        except (msgspec.DecodeError, RecursionError) as error:
            raise UpstreamMalformed("The worker sent routing data that is no object.", cause=error) from error
        if note is not None:
            facts.routing_data = note
        rest = remove_member(document, _NAME)
        return b"" if rest.strip(b"{} \t\r\n") == b"" else rest

    def failure(self, event: bytes, document: bytes, status: int) -> bytes:
        """``event``, whose ``document`` told of a failure with ``status``, as the client gets it."""
        if not self.cut or status < _SERVER_FAILURE:
            return event
        # Only the engine's own words: what was generated may hold paths too.
        for words in _words_of(document):
            event = event.replace(words, cut_paths(words))
        return event

    def body(self, body: bytes, status: int) -> bytes:
        """The whole body of an error reply with ``status``."""
        return cut_paths(body) if self.cut and status >= _SERVER_FAILURE else body


class _Meta(msgspec.Struct):
    finish_reason: msgspec.Raw = NULL


class _Failure(msgspec.Struct):
    error: msgspec.Raw = NULL
    meta_info: _Meta | None = None


_failure = msgspec.json.Decoder(_Failure).decode


def _words_of(document: bytes) -> list[bytes]:
    try:
        failure = _failure(document)
    except (msgspec.DecodeError, RecursionError):
        # Of an unusual shape: all of it is cut rather than none.
        return [document]
    reason = NULL if failure.meta_info is None else failure.meta_info.finish_reason
    return [bytes(words) for words in (failure.error, reason) if words != NULL]
