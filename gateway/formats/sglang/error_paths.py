"""File paths in an engine's error messages, which are removed in every kind of reply.

Owns: which members are error messages. Must never enter: the id (ids.py), the stream mode
(mode_conversion.py).
"""

from __future__ import annotations

import msgspec

from gateway.formats.id_mapping import IdMapping
from gateway.formats.paths import cut_paths
from gateway.formats.sglang.raw_members import NULL

_SERVER_FAILURE = 500


class ErrorPathCutter:
    """Removes file paths from failures with a status of 500 or more, if ``cut`` is true."""

    __slots__ = ("cut",)

    def __init__(self, *, cut: bool) -> None:
        self.cut = cut

    def cut_event(self, event: bytes, document: bytes, status: int) -> bytes:
        """Return ``event``, whose ``document`` reports a failure with ``status``, without file paths."""
        if not self.cut or status < _SERVER_FAILURE:
            return event
        # Only in the engine's own messages: generated text may contain paths.
        for text in _error_texts(document):
            event = event.replace(text, cut_paths(text))
        return event

    def rewriter(self, document: bytes, status: int) -> IdMapping | None:
        """Return a rewriter that does the same to an event read in pieces, None if there is nothing to
        remove.

        ``document`` is the part of the event that reports the failure.
        """
        if not self.cut or status < _SERVER_FAILURE:
            return None
        cut = {text: cut_paths(text) for text in _error_texts(document)}
        return IdMapping(cut) if cut else None

    def body(self, body: bytes, status: int) -> bytes:
        """Return the body of an error reply with ``status`` without file paths."""
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
        # The shape is unknown: paths are removed from the entire document.
        return [document]
    reason = NULL if failure.meta_info is None else failure.meta_info.finish_reason
    return [bytes(text) for text in (failure.error, reason) if text != NULL]
