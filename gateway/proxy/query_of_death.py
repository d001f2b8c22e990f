"""A guard against queries of death: request bodies that crash the workers they are sent to.

Owns: which bodies were running as workers died, and the refusal of one under which two workers died. Must
never enter: a dialect, I/O, a clock of its own (times are passed in, in seconds of one monotonic clock).

A body is suspected when two things happen within ``GRACE``: a reply to it broke off, and its worker is found
dead. Other bodies on that worker are suspected as well; that a second worker dies under the same body tells
the cause from the bystanders. Incarnations are counted, not workers: a worker that was restarted and dies
again has died twice, and a body that ran many times on a worker that died once has seen one death.

Guards of several processes of one host exchange what they find. What is found of a body elsewhere
counts here as well. As an incarnation has no name that two processes know, a death is named by URL and time:
deaths of one worker that two processes notice within ``SAME_DEATH`` are one, unless this process has noticed
two. So if a worker is restarted and dies again in that time, one more may be given the body.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Sequence
from hashlib import blake2b
from typing import Generic, NamedTuple, TypeVar

from gateway.errors import PoisonedRequest

#: Seconds that may lie between the end of a broken reply and the detection of its worker's death, in either
#: order: an engine whose inner process died may keep its connections for 5 s, and probes are seconds apart.
GRACE = 10.0
#: Seconds within which two processes notice one death: each notices it within ``GRACE`` of a broken reply.
SAME_DEATH = 2 * GRACE
#: Largest number of entries in each table; the oldest are removed first.
CAPACITY = 4096
#: Bytes of a body that are hashed in one step, which takes about 2 ms.
STEP = 1024 * 1024
#: Seconds between two messages to other processes that a refused body was sent again.
REFUSED_AGAIN = 1.0

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def digest(body: bytes, cuts: Sequence[tuple[int, int]] = ()) -> bytes:
    """Return 16 bytes that identify ``body`` without the (start, end) parts ``cuts``."""
    if not cuts:
        return blake2b(body, digest_size=16).digest()
    steps = digest_in_steps(body, cuts)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            found: bytes = done.value
            return found


def digest_in_steps(body: bytes, cuts: Sequence[tuple[int, int]] = ()) -> Generator[None, None, bytes]:
    """Return what ``digest`` returns, with a yield after each step of at most STEP bytes."""
    hasher, view, done = blake2b(digest_size=16), memoryview(body), 0
    for start, end in (*cuts, (len(body), len(body))):
        for begin in range(done, start, STEP):
            hasher.update(view[begin : min(begin + STEP, start)])
            yield
        done = max(done, end)
    return hasher.digest()


class RecentTable(Generic[K, V]):
    """A table that removes entries not set for ``age`` seconds, and the oldest ones beyond ``CAPACITY``."""

    __slots__ = ("_age", "_entries")

    def __init__(self, age: float) -> None:
        self._age = age
        self._entries: dict[K, tuple[float, V]] = {}

    def __len__(self) -> int:
        """Return the number of entries, expired ones that are still to be removed included."""
        return len(self._entries)

    def set(self, key: K, value: V, now: float) -> None:
        self._entries.pop(key, None)
        self._entries[key] = (now, value)
        self._remove_expired(now)

    def get(self, key: K, now: float) -> V | None:
        self._remove_expired(now)
        found = self._entries.get(key)
        # Those of other processes are not in order.
        return found[1] if found is not None and abs(now - found[0]) <= self._age else None

    def remove(self, key: K) -> None:
        self._entries.pop(key, None)

    def items(self, now: float) -> tuple[tuple[K, float, V], ...]:
        """Return the key, time and value of each entry."""
        self._remove_expired(now)
        return tuple((key, at, value) for key, (at, value) in self._entries.items())

    def _remove_expired(self, now: float) -> None:
        # The entries are in the order of their times, so that the first one expires next.
        while self._entries:
            key = next(iter(self._entries))
            if len(self._entries) <= CAPACITY and now - self._entries[key][0] <= self._age:
                return
            del self._entries[key]


class Finding(NamedTuple):
    """What the guard of one process tells those of others of the body with the digest ``body``.

    A worker at the URL ``died`` was found dead at ``at`` while it ran the body. If ``died`` is None, two
    workers were, and the body was last refused, or found to be so, at ``at``.
    """

    body: bytes
    died: str | None
    at: float


class _Death(NamedTuple):
    """The death of the worker at ``url``; ``incarnation`` is None if another process noticed it ``at``."""

    url: str
    at: float
    incarnation: Hashable | None


class QueryOfDeathGuard:
    """Refuses a body under which two workers died within ``window`` seconds; 0: refuses nothing.

    A body is refused until nobody has sent it for ``window`` seconds, so that a client that retries without
    end kills two workers and no third. An ``incarnation`` is any object that tells one process behind a
    worker's URL from the next. ``notify`` sends findings to the other processes, if there are any.
    """

    def __init__(self, window: float, notify: Callable[[Sequence[Finding]], None] | None = None) -> None:
        self._window = window
        self._notify = notify
        #: (incarnation, body) of broken replies on a worker not known to be dead.
        self._broken_replies: RecentTable[tuple[Hashable, bytes], None] = RecentTable(GRACE)
        self._dead: RecentTable[Hashable, _Death] = RecentTable(GRACE)
        #: Body -> the death that a worker died under it.
        self._suspects: RecentTable[bytes, _Death] = RecentTable(window)
        #: Body -> when the other processes were notified.
        self._refused: RecentTable[bytes, float] = RecentTable(window)
        #: True if there may be a body to refuse; else no body's digest is needed.
        self.armed = False

    @property
    def on(self) -> bool:
        """True if broken replies are to be reported at all."""
        return self._window > 0

    def check(self, body: bytes, now: float) -> None:
        """Raise PoisonedRequest if two workers died under the body with the digest ``body``."""
        notified = self._refused.get(body, now)
        if notified is not None:
            if now - notified >= REFUSED_AGAIN:
                notified = now
                self._report([Finding(body, None, now)])
            self._refused.set(body, notified, now)
            raise PoisonedRequest(
                f"two workers died within {self._window:g} s while they ran this very request, so no other"
                f" worker is given it (rule {PoisonedRequest.rule}, set by --poison-window-seconds)"
            )
        self.armed = len(self._refused) > 0

    def reply_broke(self, body: bytes, incarnation: Hashable, now: float) -> None:
        """Record that a reply to the body with the digest ``body`` broke off at ``now``."""
        death = self._dead.get(incarnation, now)
        if death is not None:
            self._report(self._suspect(body, death, now))
        else:
            self._broken_replies.set((incarnation, body), None, now)

    def worker_died(self, url: str, incarnation: Hashable, now: float) -> None:
        """Record that the worker at ``url`` was found dead at ``now``."""
        death = _Death(url, now, incarnation)
        self._dead.set(incarnation, death, now)
        found: list[Finding] = []
        for key, _, _ in self._broken_replies.items(now):
            if key[0] is incarnation:
                self._broken_replies.remove(key)
                found += self._suspect(key[1], death, now)
        self._report(found)

    def findings(self, now: float) -> Sequence[Finding]:
        """Return what a process that starts has to know."""
        suspects = [Finding(body, death.url, death.at) for body, _, death in self._suspects.items(now)]
        return [*suspects, *(Finding(body, None, at) for body, at, _ in self._refused.items(now))]

    def receive(self, findings: Sequence[Finding], now: float) -> None:
        """Take in what other processes found."""
        for body, died, at in sorted(findings, key=lambda finding: finding.at):
            if now - at > self._window:
                continue
            if died is None:
                self._refuse(body, at)
            else:
                # They know of this death already, but not that it is the second one.
                found = self._suspect(body, _Death(died, at, None), at)
                self._report([each for each in found if each.died is None])

    def _report(self, found: Sequence[Finding]) -> None:
        if found and self._notify is not None:
            self._notify(found)

    def _suspect(self, body: bytes, death: _Death, now: float) -> Sequence[Finding]:
        """Record that a worker died under ``body``; return what is new about it."""
        before = self._suspects.get(body, now)
        if before is None:
            self._suspects.set(body, death, now)
            return [Finding(body, death.url, death.at)]
        if self._same(before, death, now):
            return []
        self._refuse(body, now)
        return [Finding(body, None, now)]

    def _refuse(self, body: bytes, now: float) -> None:
        self._suspects.remove(body)
        self._refused.set(body, now, now)
        self.armed = True

    def _same(self, one: _Death, other: _Death, now: float) -> bool:
        """Return True unless the two are deaths of different incarnations."""
        incarnations = self._incarnation(one, now), self._incarnation(other, now)
        if None not in incarnations:
            return incarnations[0] is incarnations[1]
        return _may_be_one(one, other)

    def _incarnation(self, death: _Death, now: float) -> Hashable | None:
        """Return which incarnation died, as far as this process has noticed it as well."""
        if death.incarnation is not None:
            return death.incarnation
        own = [each for _, _, each in self._dead.items(now) if _may_be_one(each, death)]
        nearest = min(own, key=lambda each: abs(each.at - death.at), default=None)
        return None if nearest is None else nearest.incarnation


def _may_be_one(one: _Death, other: _Death) -> bool:
    return one.url == other.url and abs(one.at - other.at) <= SAME_DEATH
