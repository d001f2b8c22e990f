"""The merge of several Prometheus scrapes into one.

Owns: as much of the text format as the merge needs: families, samples, one more label. Must never enter:
which workers are scraped, I/O, values (they are copied unchanged).

The format requires all samples of a family together, with one HELP and one TYPE line, so families are
collected by name and written at the end. A scraper rejects a complete scrape because of one line it cannot
parse, so only valid samples of a worker are accepted.

Source: Prometheus text exposition format 0.0.4.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_NAME = re.compile(rb"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = rb'[ \t]*+[a-zA-Z_][a-zA-Z0-9_]*+[ \t]*+=[ \t]*+"(?:[^"\\]|\\.)*+"[ \t]*+'
_VALUE = rb"[-+]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[Ii]nf|NaN|nan)"
#: What follows the name in a sample, up to its timestamp. Further parts, of other formats, are left out.
_REST = re.compile(
    rb"(?:\{(?:%b(?:,%b)*+,?)?+[ \t]*+\}[ \t]*+|[ \t]++)%b(?:[ \t]++-?[0-9]++)?(?=[ \t]*+(?:#|$))"
    % (_LABEL, _LABEL, _VALUE)
)
_TYPES = frozenset({b"counter", b"gauge", b"histogram", b"summary", b"untyped"})
#: What may follow the name of a family in the name of a sample.
_SUFFIXES = frozenset({b"", b"_bucket", b"_sum", b"_count", b"_total", b"_created", b"_info"})
_WORKER_LABEL = re.compile(rb'([{,]\s*)worker(\s*=\s*")')


class Family:
    """One metric, with the samples of all workers."""

    __slots__ = ("help", "samples", "type")

    def __init__(self) -> None:
        self.help: bytes | None = None
        self.type: bytes | None = None
        self.samples: list[bytes] = []


class Merger:
    """A merge in progress. ``size`` is the sum of all samples so far, in bytes."""

    def __init__(self) -> None:
        self._families: dict[bytes, Family] = {}
        self.size = 0

    def add(self, worker: str, scrape: bytes) -> Iterator[None]:
        """Add the ``scrape`` of ``worker``.

        Yield before each line, so that the caller can let other tasks run.
        """
        label = b'worker="%b"' % _escaped(worker)
        current = b""
        for line in scrape.splitlines():
            yield
            words = line.split(None, 3)
            if not words or not _is_text(line):
                continue
            if words[0] == b"#":
                if _describes(words):
                    current = words[2]
                    self._describe(words[1], current, line)
            elif (name := _NAME.match(line)) and (rest := _REST.match(line, name.end())):
                current = self._sample(current, name[0], rest[0], label)

    def render(self) -> Iterator[bytes]:
        """Yield each complete family, in the order in which they were first seen."""
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

    def _sample(self, current: bytes, name: bytes, rest: bytes, label: bytes) -> bytes:
        """Add one sample and return the name of its family."""
        if not (current and name.startswith(current) and name[len(current) :] in _SUFFIXES):
            current = name
        labelled = _labelled(name, rest, label)
        self.size += len(labelled) + 1
        self._family(current).samples.append(labelled)
        return current


def _is_text(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def _describes(words: Sequence[bytes]) -> bool:
    """Return True if a comment is the HELP or TYPE line of a family."""
    if len(words) < 3 or not _NAME.fullmatch(words[2]):
        return False
    kind = words[3].strip() if len(words) > 3 else b""
    return words[1] == b"HELP" or (words[1] == b"TYPE" and kind in _TYPES)


def _labelled(name: bytes, rest: bytes, label: bytes) -> bytes:
    """Return the sample with ``label`` added.

    A label ``worker`` of its own becomes ``exported_worker``, as Prometheus itself renames such a label.
    """
    if not rest.startswith(b"{"):
        return b"%b{%b}%b" % (name, label, rest)
    if b"worker" in rest:
        rest = _WORKER_LABEL.sub(rb"\1exported_worker\2", rest, count=1)
    comma = b"" if rest[1:].lstrip().startswith(b"}") else b","
    return b"%b{%b%b%b" % (name, label, comma, rest[1:])


def _escaped(value: str) -> bytes:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n").encode("utf-8", "replace")
