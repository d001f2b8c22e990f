"""Making one Prometheus scrape of many.

Owns: the text format, as far as that takes: families, samples, one more label. Must never enter: who was
scraped, I/O, values (they pass as they were written).

The format wants all samples of a family together and one HELP and TYPE for each, so families are kept by name
while the scrapes come in, and written out at the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_NAME = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:]*")
#: What may follow a family's name in that of one of its samples.
_SUFFIXES = frozenset({b"", b"_bucket", b"_sum", b"_count", b"_total", b"_created", b"_info"})
_TAKEN = re.compile(rb'([{,]\s*)worker(\s*=\s*")')


class Family:
    """One metric of all workers."""

    __slots__ = ("help", "samples", "type")

    def __init__(self) -> None:
        self.help: bytes | None = None
        self.type: bytes | None = None
        self.samples: list[bytes] = []


class Merger:
    """Takes scrapes in, line by line. ``size`` is what they come to so far, in bytes."""

    def __init__(self) -> None:
        self._families: dict[bytes, Family] = {}
        self.size = 0

    def take(self, worker: str, scrape: bytes) -> Iterator[None]:
        """Take in the ``scrape`` of ``worker``; yields after each line, so that others can have a turn."""
        label = b'worker="%b"' % _escaped(worker)
        current = b""
        for line in scrape.splitlines():
            yield
            words = line.split(None, 3)
            if not words:
                continue
            if words[0] == b"#":
                if len(words) >= 3 and words[1] in (b"HELP", b"TYPE"):
                    current = words[2]
                    self._describe(words[1], current, line)
            elif line[:1] != b"#" and (match := _NAME.match(line)):
                current = self._sample(current, match, line, label)

    def render(self) -> Iterator[bytes]:
        """The families, in the order in which they were first seen, each whole."""
        for family in self._families.values():
            if family.samples:
                head = [line for line in (family.help, family.type) if line is not None]
                yield b"\n".join((*head, *family.samples, b""))

    def _family(self, name: bytes) -> Family:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = Family()
        return family

    def _describe(self, word: bytes, name: bytes, line: bytes) -> None:
        family = self._family(name)
        if word == b"HELP":
            family.help = family.help or line
        else:
            family.type = family.type or line

    def _sample(self, current: bytes, match: re.Match[bytes], line: bytes, label: bytes) -> bytes:
        """Note one sample and return the name of the family that it is of."""
        name = match[0]
        if not (current and name.startswith(current) and name[len(current) :] in _SUFFIXES):
            current = name
        labelled = _labelled(line, match.end(), label)
        self.size += len(labelled) + 1
        self._family(current).samples.append(labelled)
        return current


def _labelled(line: bytes, end: int, label: bytes) -> bytes:
    """The sample with one more label; its own of that name gets the name that scrapers give it, too."""
    name, rest = line[:end], line[end:]
    if not rest.startswith(b"{"):
        return b"%b{%b}%b" % (name, label, rest)
    if b"worker" in rest:
        rest = _TAKEN.sub(rb"\1exported_worker\2", rest, count=1)
    comma = b"" if rest[1:].lstrip().startswith(b"}") else b","
    return b"%b{%b%b%b" % (name, label, comma, rest[1:])


def _escaped(value: str) -> bytes:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n").encode("utf-8", "replace")
