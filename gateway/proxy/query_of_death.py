"""A shield against a body that kills the workers it is sent to.

Owns: which bodies were running as workers died, and refusing one under which two did. Must never enter: a
dialect, I/O, a clock of its own (times are passed in, in seconds of one monotonic clock).

A worker has died of a body, perhaps, when two things meet within ``GRACE``: a reply to the body broke off,
and the worker is found dead. Whatever else ran there is held as suspect too; that a second worker dies under
the same body as well tells the culprit from the bystanders. Lives, not workers, are counted: a worker that
was restarted and dies again has died twice, and a body that ran many times on a worker that dies once has
seen one death.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Sequence
from hashlib import blake2b
from typing import Generic, TypeVar

from gateway.errors import PoisonedRequest

#: Seconds that may lie between a reply's breaking off and its worker's being found dead, in either order: an
#: engine whose inner process died may hold its connections for 5 s, and probes are some seconds apart.
GRACE = 10.0
#: Entries of each table; the oldest go first.
CAPACITY = 4096
#: Bytes of a body that are taken in at once where it is done in steps.
STEP = 1024 * 1024

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def digest(body: bytes, cuts: Sequence[tuple[int, int]] = ()) -> bytes:
    """What tells a body, without what stands at ``cuts``, from others: 16 bytes."""
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
    """The same, with a yield about every millisecond."""
    found, view, done = blake2b(digest_size=16), memoryview(body), 0
    for start, end in (*cuts, (len(body), len(body))):
        for begin in range(done, start, STEP):
            found.update(view[begin : min(begin + STEP, start)])
            yield
        done = max(done, end)
    return found.digest()


class Recent(Generic[K, V]):
    """A table that forgets what was not put for ``age`` seconds, and the oldest beyond ``CAPACITY``."""

    __slots__ = ("_age", "_entries")

    def __init__(self, age: float) -> None:
        self._age = age
        self._entries: dict[K, tuple[float, V]] = {}

    def __len__(self) -> int:
        """Entries held; those that are only waiting to be forgotten count."""
        return len(self._entries)

    def put(self, key: K, value: V, now: float) -> None:
        self._entries.pop(key, None)
        self._entries[key] = (now, value)
        self._forget(now)

    def get(self, key: K, now: float) -> V | None:
        self._forget(now)
        found = self._entries.get(key)
        return found[1] if found is not None else None

    def drop(self, key: K) -> None:
        self._entries.pop(key, None)

    def keys(self, now: float) -> tuple[K, ...]:
        self._forget(now)
        return tuple(self._entries)

    def _forget(self, now: float) -> None:
        # The entries are in the order of their times, so that the first is the next to go.
        while self._entries:
            key = next(iter(self._entries))
            if len(self._entries) <= CAPACITY and now - self._entries[key][0] <= self._age:
                return
            del self._entries[key]


class QueryOfDeathGuard:
    """Refuses a body under which two workers died within ``window`` seconds; 0: refuses nothing.

    It goes on to be refused until nobody has sent it for ``window`` seconds, so that a client that tries
    again and again kills two workers and no third. A ``life`` is whatever tells one process behind a
    worker's URL from the next.
    """

    def __init__(self, window: float) -> None:
        self._window = window
        #: (life, body) of replies that broke off on a worker not known to be dead
        self._broken: Recent[tuple[Hashable, bytes], None] = Recent(GRACE)
        self._ended: Recent[Hashable, bool] = Recent(GRACE)
        #: body -> the life that ended under it
        self._suspects: Recent[bytes, Hashable] = Recent(window)
        self._refused: Recent[bytes, bool] = Recent(window)
        #: Whether there may be a body to refuse; else nobody needs to know a body's digest.
        self.armed = False

    @property
    def on(self) -> bool:
        """Whether broken replies are to be told at all."""
        return self._window > 0

    def check(self, body: bytes, now: float) -> None:
        """Refuse the body with this digest if two workers died under it. Raises Poisoned."""
        if self._refused.get(body, now):
            self._refused.put(body, True, now)
            raise PoisonedRequest(
                f"two workers died within {self._window:g} s while they ran this very request, so no other"
                f" worker is given it (rule {PoisonedRequest.rule}, set by --poison-window-seconds)"
            )
        self.armed = len(self._refused) > 0

    def broke(self, body: bytes, life: Hashable, now: float) -> None:
        """A reply to the body with this digest broke off on a worker in its ``life``."""
        if self._ended.get(life, now):
            self._died_under(body, life, now)
        else:
            self._broken.put((life, body), None, now)

    def died(self, life: Hashable, now: float) -> None:
        """A worker was found dead, and its ``life`` is over."""
        self._ended.put(life, True, now)
        for key in self._broken.keys(now):
            if key[0] is life:
                self._broken.drop(key)
                self._died_under(key[1], life, now)

    def _died_under(self, body: bytes, life: Hashable, now: float) -> None:
        before = self._suspects.get(body, now)
        if before is None:
            self._suspects.put(body, life, now)
        elif before is not life:
            self._suspects.drop(body)
            self._refused.put(body, True, now)
            self.armed = True
