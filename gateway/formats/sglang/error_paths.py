"""File paths in the words of a failure, which are cut out whatever kind of reply it is.

Owns: where those words stand. Must never enter: the id (ids.py), the stream mode (convert.py).
"""

from __future__ import annotations

import msgspec

from gateway.formats.id_mapping import IdMapping
from gateway.formats.paths import cut_paths
from gateway.formats.sglang.raw_members import NULL

_SERVER_FAILURE = 500


class ErrorPathCutter:
    """``cut``: file paths are cut from failures whose status is 500 or over."""

    __slots__ = ("cut",)

    def __init__(self, *, cut: bool) -> None:
        self.cut = cut

    def cut_event(self, event: bytes, document: bytes, status: int) -> bytes:
        """``event``, whose ``document`` told of a failure with ``status``, as the client gets it."""
        if not self.cut or status < _SERVER_FAILURE:
            return event
        # Only the engine's own words: what was generated may hold paths too.
        for words in _error_texts(document):
            event = event.replace(words, cut_paths(words))
        return event

    def rewriter(self, document: bytes, status: int) -> IdMapping | None:
        """The same for an event that comes in pieces, of whose ``document`` this is what matters."""
        if not self.cut or status < _SERVER_FAILURE:
            return None
        cut = {words: cut_paths(words) for words in _error_texts(document)}
        return IdMapping(cut) if cut else None

    def body(self, body: bytes, status: int) -> bytes:
        """The whole body of an error reply with ``status``."""
        return cut_paths(body) if self.cut and status >= _SERVER_FAILURE else body


class _Meta(msgspec.Struct):
    finish_reason: msgspec.Raw = NULL


class _Failure(msgspec.Struct):
    error: msgspec.Raw = NULL
    meta_info: _Meta | None = None


_failure = msgspec.json.Decoder(_Failure).decode


def _error_texts(document: bytes) -> list[bytes]:
    try:
        failure = _failure(document)
    except (msgspec.DecodeError, RecursionError):
        # Of an unusual shape: all of it is cut rather than none.
        return [document]
    reason = NULL if failure.meta_info is None else failure.meta_info.finish_reason
    return [bytes(words) for words in (failure.error, reason) if words != NULL]
