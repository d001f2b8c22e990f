"""A guard against queries of death: request bodies that crash the workers they are sent to.

Owns: which bodies were running as workers died, and the refusal of one under which two workers died. Must
never enter: a dialect, I/O, a clock of its own (times are passed in, in seconds of one monotonic clock).

A body is suspected when two things happen within ``GRACE``: a reply to it broke off, and its worker is found
dead. Other bodies on that worker are suspected as well; that a second worker dies under the same body tells
the cause from the bystanders. Incarnations are counted, not workers: a worker that was restarted and dies
again has died twice, and a body that ran many times on a worker that died once has seen one death.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Sequence
from hashlib import blake2b
from typing import Generic, TypeVar

from gateway.errors import PoisonedRequest

#: Seconds that may lie between the end of a broken reply and the detection of its worker's death, in either
#: order: an engine whose inner process died may keep its connections for 5 s, and probes are seconds apart.
GRACE = 10.0
#: Largest number of entries in each table; the oldest are removed first.
CAPACITY = 4096
#: Bytes of a body that are hashed in one step, which takes about 2 ms.
STEP = 1024 * 1024

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
        return found[1] if found is not None else None

    def remove(self, key: K) -> None:
        self._entries.pop(key, None)

    def keys(self, now: float) -> tuple[K, ...]:
        self._remove_expired(now)
        return tuple(self._entries)

    def _remove_expired(self, now: float) -> None:
        # The entries are in the order of their times, so that the first one expires next.
        while self._entries:
            key = next(iter(self._entries))
            if len(self._entries) <= CAPACITY and now - self._entries[key][0] <= self._age:
                return
            del self._entries[key]


class QueryOfDeathGuard:
    """Refuses a body under which two workers died within ``window`` seconds; 0: refuses nothing.

    A body is refused until nobody has sent it for ``window`` seconds, so that a client that retries without
    end kills two workers and no third. An ``incarnation`` is any object that tells one process behind a
    worker's URL from the next.
    """

    def __init__(self, window: float) -> None:
        self._window = window
        #: (incarnation, body) of broken replies on a worker not known to be dead.
        self._broken_replies: RecentTable[tuple[Hashable, bytes], None] = RecentTable(GRACE)
        self._dead: RecentTable[Hashable, bool] = RecentTable(GRACE)
        #: Body -> the incarnation that died under it.
        self._suspects: RecentTable[bytes, Hashable] = RecentTable(window)
        self._refused: RecentTable[bytes, bool] = RecentTable(window)
        #: True if there may be a body to refuse; else no body's digest is needed.
        self.armed = False

    @property
    def on(self) -> bool:
        """True if broken replies are to be reported at all."""
        return self._window > 0

    def check(self, body: bytes, now: float) -> None:
        """Raise PoisonedRequest if two workers died under the body with the digest ``body``."""
        if self._refused.get(body, now):
            self._refused.set(body, True, now)
            raise PoisonedRequest(
                f"two workers died within {self._window:g} s while they ran this very request, so no other"
                f" worker is given it (rule {PoisonedRequest.rule}, set by --poison-window-seconds)"
            )
        self.armed = len(self._refused) > 0

    def reply_broke(self, body: bytes, incarnation: Hashable, now: float) -> None:
        """Record that a reply to the body with the digest ``body`` broke off at ``now``."""
        if self._dead.get(incarnation, now):
            self._suspect(body, incarnation, now)
        else:
            self._broken_replies.set((incarnation, body), None, now)

    def worker_died(self, incarnation: Hashable, now: float) -> None:
        """Record that a worker was found dead at ``now``."""
        self._dead.set(incarnation, True, now)
        for key in self._broken_replies.keys(now):
            if key[0] is incarnation:
                self._broken_replies.remove(key)
                self._suspect(key[1], incarnation, now)

    def _suspect(self, body: bytes, incarnation: Hashable, now: float) -> None:
        before = self._suspects.get(body, now)
        if before is None:
            self._suspects.set(body, incarnation, now)
        elif before is not incarnation:
            self._suspects.remove(body)
            self._refused.set(body, True, now)
            self.armed = True
