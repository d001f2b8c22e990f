"""What was said of workers through the gateway, beside their records: that they are held, paused, removed.

Owns: the words, what is known of them here, and the holds that follow. Must never enter: a dialect, HTTP,
telling anybody (``sharing`` does).

A mark belongs to a URL, whether its worker is a member of this gateway, of a store, or of neither yet. Of all
that was said of it, here, in other processes and in the store, the latest counts (``Versioned``); so nothing
depends on what arrives first, or twice. A mark that was lifted is remembered for a while, for those who hear
of it late.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping

from gateway.fleet.registry import Fleet
from gateway.fleet.states import CordonSource
from gateway.fleet.worker import Worker
from gateway.stores.versioned import Updates, Versioned

#: Cordons of one worker, each a word.
Words = frozenset[str]
#: By URL, and by word whether it is to be there.
Changes = Mapping[str, Mapping[str, bool]]

#: Nobody gives it requests until it is opened.
HELD = "held"
#: It was given at the start, and is no member any more. Who is started anew is told anew, so this is said to
#: other processes and not to a store.
REMOVED = "removed"
_PAUSED, _WAIVED = "paused:", "waived:"

#: Lifted marks that are remembered: so many, and more for each worker. The oldest go first.
LIFTED, LIFTED_EACH = 1024, 4
_NEVER = Versioned(-1, "", present=False)


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


def microseconds() -> int:
    """Of the host's clock: what was said in an outage, or before a restart, has to be earlier than what is
    said after it, wherever. Where clocks differ, so may the order of what is said within the difference by
    those who have not heard of each other."""
    return time.time_ns() // 1000


class Cordons:
    """One per app. ``fleet`` has the workers that they are about."""

    def __init__(self, fleet: Fleet, clock: Callable[[], int] = microseconds) -> None:
        self._fleet = fleet
        self._clock = clock
        self._who = secrets.token_hex(4)
        self._latest = 0
        self._there: dict[str, dict[str, Versioned]] = {}
        #: By URL and word; what was said last is at the end.
        self._lifted: OrderedDict[tuple[str, str], Versioned] = OrderedDict()
        #: A store has told all that it has.
        self.told = asyncio.Event()
        #: Told the URL of a worker that is no member any more.
        self.removed: Callable[[str], object] = lambda url: None
        #: Told what was said by nobody but the gateway itself.
        self.lifted: Callable[[Updates], None] = lambda edits: None
        #: Told a URL that has marks since somebody said so, and no worker.
        self.homeless: Callable[[str], None] = lambda url: None

    @property
    def all(self) -> Updates:
        """All that is known, lifted marks as well."""
        found = {url: dict(words) for url, words in self._there.items()}
        for (url, word), said in self._lifted.items():
            found.setdefault(url, {})[word] = said
        return found

    def of(self, url: str) -> Words:
        """The marks of one worker."""
        return frozenset(self._there.get(url, ()))

    def known(self, url: str, word: str) -> Versioned | None:
        """What was said last of this mark, None: nothing, or it is long lifted."""
        return self._there.get(url, {}).get(word) or self._lifted.get((url, word))

    def say(self, wishes: Changes) -> Updates:
        """Somebody says so to this process, after all that is known to it; to be told to all others."""
        now = max(self._clock(), self._latest + 1)
        edits = {
            url: {word: Versioned(now, self._who, there) for word, there in words.items()}
            for url, words in wishes.items()
        }
        self._take(edits)
        return edits

    def hear(self, edits: Updates) -> Updates:
        """Another process says so; what of it is news."""
        news = self._take(edits)
        for url in news:
            if self.of(url) - {REMOVED} and self._find(url) is None:
                self.homeless(url)
        return news

    def tell(self, url: str, words: Mapping[str, Versioned]) -> None:
        """A store has a change of these marks. What has no date was done a moment ago by somebody who knows
        none."""
        there, now = self.of(url), max(self._clock(), self._latest + 1)
        dated = {
            word: said if said.dated else said._replace(timestamp=now)
            for word, said in words.items()
            if said.dated or said.present != (word in there)
        }
        self._take({url: dated})

    def tell_all(self, marks: Updates) -> None:
        """A store has these. What has no date is older than anything else."""
        self._take(marks)
        self.told.set()

    def lift(self, url: str, *, held: bool) -> None:
        """Who stands behind ``url`` is another one from now on, or nobody. With ``held`` it is no member any
        more, else whoever comes next is held like the one before."""
        words = {word: False for word in self.of(url) if word != REMOVED and (held or word != HELD)}
        if words:
            self.lifted(self.say({url: words}))

    def enter(self, worker: Worker) -> None:
        """It is a member from now on."""
        self._show(worker, dict.fromkeys(self.of(worker.url), True))

    def _take(self, edits: Updates) -> Updates:
        news: dict[str, Mapping[str, Versioned]] = {}
        for url, words in edits.items():
            later = {word: said for word, said in words.items() if said > (self.known(url, word) or _NEVER)}
            if later:
                news[url] = later
                for word, said in later.items():
                    self._set(url, word, said)
                if (worker := self._find(url)) is not None:
                    self._show(worker, {word: said.present for word, said in later.items()})
        self._forget()
        return news

    def _set(self, url: str, word: str, said: Versioned) -> None:
        self._latest = max(self._latest, said.timestamp)
        self._lifted.pop((url, word), None)
        if said.present:
            self._there.setdefault(url, {})[word] = said
            return
        self._lifted[url, word] = said
        words = self._there.get(url, {})
        if words.pop(word, None) is not None and not words:
            del self._there[url]

    def _forget(self) -> None:
        if len(self._lifted) > LIFTED:
            most = LIFTED + LIFTED_EACH * len(self._fleet.workers)
            while len(self._lifted) > most:
                self._lifted.popitem(last=False)

    def _find(self, url: str) -> Worker | None:
        worker = self._fleet.find(url)
        return worker if worker is not None and worker.url == url else None

    def _show(self, worker: Worker, words: Mapping[str, bool]) -> None:
        """Hold or open ``worker`` as these marks, which came or went, have it."""
        for word, there in words.items():
            if word == HELD and there:
                self._fleet.cordon(worker, CordonSource.OWNER, "held until it is opened")
            elif word == HELD and not worker.record.held:
                self._fleet.uncordon(worker, CordonSource.OWNER)
            elif word == REMOVED and there:
                self.removed(worker.url)
            elif word.startswith(_WAIVED) and there:
                self._fleet.allow_weights(worker, word.removeprefix(_WAIVED) or None)
        if any(word.startswith(_PAUSED) for word in words):
            self._show_pauses(worker)

    def _show_pauses(self, worker: Worker) -> None:
        kinds = {word.split(":")[1] for word in self.of(worker.url) if word.startswith(_PAUSED)}
        if kinds:
            self._fleet.cordon(
                worker, CordonSource.PAUSED, f"paused through the gateway: {', '.join(sorted(kinds))}"
            )
        else:
            self._fleet.uncordon(worker, CordonSource.PAUSED)
