"""What was said of workers through the gateway, beside their records: that they are held, paused, removed.

Owns: the words, what is known of them here, and the holds that follow. Must never enter: a dialect, HTTP,
telling anybody (``sharing`` does).

A mark belongs to a URL, whether its worker is a member of this gateway, of a store, or of neither yet. What
was said here counts until the store is known to have it: what a store tells may be older than that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from gateway.fleet.registry import Fleet
from gateway.fleet.states import Hold
from gateway.fleet.worker import Worker

#: Marks of one worker, each a word.
Words = frozenset[str]
#: Changes of marks: by URL, and by word whether it is there from now on. JSON can have it.
Edits = Mapping[str, Mapping[str, bool]]

NONE: Words = frozenset()
#: Nobody gives it requests until it is opened.
HELD = "held"
#: It was given at the start, and is no member any more. Who is started anew is told anew, so this is said to
#: other processes and not to a store.
REMOVED = "removed"
_PAUSED, _WAIVED = "paused:", "waived:"


def paused(kind: str, part: str) -> str:
    """The mark of a worker that lacks this part of a kind; a kind holds no colon."""
    return f"{_PAUSED}{kind}:{part}"


def waived(version: str | None) -> str:
    """The mark of one that was opened although its weight version, None: it tells none, was too low."""
    return _WAIVED + ("" if version is None else version)


def parts_of(words: Iterable[str], kind: str) -> Words:
    """The parts of ``kind`` that a worker with these marks lacks."""
    start = paused(kind, "")
    return frozenset(word.removeprefix(start) for word in words if word.startswith(start))


class Marks:
    """One per app. ``fleet`` has the workers that they are about."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._stored: dict[str, Words] = {}
        self._said: dict[str, dict[str, bool]] = {}
        self._edited: dict[str, int] = {}
        #: A store has told all that it has.
        self.told = asyncio.Event()
        #: Told the URL of a worker that is no member any more.
        self.removed: Callable[[str], object] = lambda url: None
        #: Told the URL of a worker whose marks were lifted.
        self.lifted: Callable[[str], None] = lambda url: None

    @property
    def all(self) -> Edits:
        """Every mark that is known."""
        return {url: dict.fromkeys(words, True) for url in self._urls() if (words := self.of(url))}

    def of(self, url: str) -> Words:
        """The marks of one worker."""
        words = set(self._stored.get(url, NONE))
        for word, there in self._said.get(url, {}).items():
            (words.add if there else words.discard)(word)
        return frozenset(words)

    def said(self, url: str) -> Mapping[str, bool]:
        """What was said of it here, or in another process, and the store should have and may not yet."""
        return {word: there for word, there in self._said.get(url, {}).items() if word != REMOVED}

    def edit(self, edits: Edits) -> None:
        """Somebody says so, to this process or to another one."""
        for url, words in edits.items():
            self._said.setdefault(url, {}).update(words)
            self._edited[url] = self.edited(url) + 1
            if (worker := self._find(url)) is not None:
                self._show(worker, words)

    def lift(self, url: str, *, held: bool) -> None:
        """Who stands behind ``url`` is another one from now on, or nobody. With ``held`` it is no member any
        more, else whoever comes next is held like the one before."""
        words = {word: False for word in self.of(url) if word != REMOVED and (held or word != HELD)}
        if words:
            self.edit({url: words})
            self.lifted(url)

    def tell(self, url: str, words: Words) -> None:
        """A store has these marks of one worker."""
        before = self.of(url)
        self._stored[url] = words
        if not words:
            del self._stored[url]
        self._changed(url, before)

    def tell_all(self, marks: Mapping[str, Words]) -> None:
        """A store has these, and no others."""
        for url in self._urls().union(marks):
            self.tell(url, marks.get(url, NONE))
        self.told.set()

    def edited(self, url: str) -> int:
        """How often something was said of it."""
        return self._edited.get(url, 0)

    def settle(self, edited: Mapping[str, int]) -> None:
        """A store has told all that was said of these until they were ``edited`` so often: it knows better by
        now, unless something was said since."""
        for url, times in edited.items():
            if times != self.edited(url):
                continue
            before, said = self.of(url), self._said.pop(url, {})
            if REMOVED in said:
                self._said[url] = {REMOVED: said[REMOVED]}
            self._changed(url, before)

    def enter(self, worker: Worker) -> None:
        """It is a member from now on."""
        self._show(worker, dict.fromkeys(self.of(worker.url), True))

    def _urls(self) -> set[str]:
        return {*self._stored, *self._said}

    def _find(self, url: str) -> Worker | None:
        worker = self._fleet.find(url)
        return worker if worker is not None and worker.url == url else None

    def _changed(self, url: str, before: Words) -> None:
        after, worker = self.of(url), self._find(url)
        if after != before and worker is not None:
            self._show(worker, {word: word in after for word in before ^ after})

    def _show(self, worker: Worker, words: Mapping[str, bool]) -> None:
        """Hold or open ``worker`` as these marks, which came or went, have it."""
        for word, there in words.items():
            if word == HELD and there:
                self._fleet.hold(worker, Hold.OWNER, "held until it is opened")
            elif word == HELD and not worker.record.held:
                self._fleet.open(worker, Hold.OWNER)
            elif word == REMOVED and there:
                self.removed(worker.url)
            elif word.startswith(_WAIVED) and there:
                self._fleet.waive(worker, word.removeprefix(_WAIVED) or None)
        if any(word.startswith(_PAUSED) for word in words):
            self._show_pauses(worker)

    def _show_pauses(self, worker: Worker) -> None:
        kinds = {word.split(":")[1] for word in self.of(worker.url) if word.startswith(_PAUSED)}
        if kinds:
            self._fleet.hold(worker, Hold.PAUSED, f"paused through the gateway: {', '.join(sorted(kinds))}")
        else:
            self._fleet.open(worker, Hold.PAUSED)
