"""Removal of a server's file paths from text that a client gets.

Owns: the recognition of absolute file paths. Must never enter: which text is cleaned, a dialect, I/O,
third-party packages.

A file path has at least two names (``/generate`` is none) and does not follow a character that precedes the
path of a URL. It ends at a blank, a quote or a bracket. Either its last name has an extension, or its first
name is one of ROOTS; a route such as ``/v1/models`` has neither.
"""

from __future__ import annotations

import re

#: Replaces a path.
MARK = b"<path>"
#: Largest path in bytes; a longer one in a stream may be split and relayed.
LONGEST = 4096
#: Directories at the top of a file system. Any path below one of them is a file path.
ROOTS = frozenset(
    b"app bin data dev etc home lib lib64 media mnt opt proc root run sbin srv sys tmp usr var "
    b"workspace".split()
)

_NAME = rb"""[^\s/"'\\<>|:;,()\[\]{}=]"""
# JSON may escape a slash with a backslash.
_SLASH = rb"\\?/"
# A line end in JSON is a backslash and a letter, which must not be taken for the end of a word.
_BEFORE = rb"(?:(?<![\w./<>\\~-])|(?<=\\[nrt]))"
_PATH = re.compile(_BEFORE + _SLASH + b"(?:" + _NAME + b"+" + _SLASH + b")+" + _NAME + b"*")
_EXTENSION = re.compile(rb".+\.[A-Za-z]\w{0,11}\.*")
_ENDS = (b" ", b"\t", b"\r", b"\n", b'"', b"'")


def cut_paths(text: bytes) -> bytes:
    """Return ``text`` with each file path replaced by ``MARK``."""
    return _PATH.sub(_marked, text) if b"/" in text else text


def _marked(found: re.Match[bytes]) -> bytes:
    _, first, *_, last = found[0].replace(b"\\", b"").split(b"/")
    return MARK if first in ROOTS or _EXTENSION.fullmatch(last) else found[0]


class PathCutter:
    """``cut_paths`` for a text that comes in pieces."""

    __slots__ = ("_pending",)

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> bytes:
        """Return the bytes that are final. What may still become a path is kept, up to ``LONGEST`` bytes."""
        pending = self._pending + data
        end = max(pending.rfind(mark) for mark in _ENDS)
        end = max(end, len(pending) - LONGEST, 0)
        self._pending = pending[end:]
        return cut_paths(pending[:end])

    def flush(self) -> bytes:
        """Return the bytes that ``feed`` has kept."""
        pending, self._pending = self._pending, b""
        return cut_paths(pending)
