"""Cutting file paths of a server out of text that a client gets.

Owns: what looks like an absolute path of a file. Must never enter: which text is to be cleaned, a dialect,
I/O, third-party packages.

A path here has at least two names, so that a lone ``/generate`` is none, and follows something that no URL
has in front of its own. It ends at a blank, a quote or a bracket. Its last name has an extension, or its
first is one that servers keep files under: a route such as ``/v1/models`` has neither.
"""

from __future__ import annotations

import re

#: Stands where a path was.
MARK = b"<path>"
#: No path is longer, in bytes; what is longer may be cut in two and passed on.
LONGEST = 4096
#: Whatever is below these is a file.
ROOTS = frozenset(
    b"app bin data dev etc home lib lib64 media mnt opt proc root run sbin srv sys tmp usr var "
    b"workspace".split()
)

_NAME = rb"""[^\s/"'\\<>|:;,()\[\]{}=]"""
# Some write a slash in JSON text with a backslash in front of it.
_SLASH = rb"\\?/"
# A line end in JSON text is spelled with a letter, which must not look like the end of a word.
_BEFORE = rb"(?:(?<![\w./<>\\~-])|(?<=\\[nrt]))"
_PATH = re.compile(_BEFORE + _SLASH + b"(?:" + _NAME + b"+" + _SLASH + b")+" + _NAME + b"*")
_EXTENSION = re.compile(rb".+\.[A-Za-z]\w{0,11}\.*")
_ENDS = (b" ", b"\t", b"\r", b"\n", b'"', b"'")


def cut_paths(text: bytes) -> bytes:
    """``text`` with ``MARK`` for each absolute path of a file."""
    return _PATH.sub(_marked, text) if b"/" in text else text


def _marked(found: re.Match[bytes]) -> bytes:
    _, first, *_, last = found[0].replace(b"\\", b"").split(b"/")
    return MARK if first in ROOTS or _EXTENSION.fullmatch(last) else found[0]


class PathCutter:
    """The same for a text that comes in pieces."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What can be passed on now. Holds back what may yet become a path, up to ``LONGEST`` bytes."""
        held = self._held + data
        cut = max(held.rfind(end) for end in _ENDS)
        cut = max(cut, len(held) - LONGEST, 0)
        self._held = held[cut:]
        return cut_paths(held[:cut])

    def flush(self) -> bytes:
        """What ``piece`` still holds."""
        held, self._held = self._held, b""
        return cut_paths(held)
