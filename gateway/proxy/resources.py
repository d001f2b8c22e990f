"""What workers have created and named: responses, sessions, files.

Owns: which worker created what, bounded in number and time. Must never enter: where an id stands in a request
or a reply, the choice of a worker.

Only the worker that created such a thing has it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from gateway.fleet.states import WorkerState
from gateway.fleet.worker import Worker

#: The most ids that are remembered, and characters of an id.
LIMIT, ID_LIMIT = 65_536, 512
#: Seconds for which an id is remembered after it was last used.
TTL = 24 * 3600.0


class Resources:
    """The creators of what the gateway's clients may refer to, by id. Times are monotonic, in seconds.

    ``notify`` tells the other processes, if there are any, an id and the URL of the worker that created it.
    """

    def __init__(self, limit: int = LIMIT, notify: Callable[[str, str], None] | None = None) -> None:
        self._limit = limit
        self._notify = notify
        #: In the order of their last use.
        self._entries: OrderedDict[str, tuple[Worker, object, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, id: str, worker: Worker, incarnation: object, now: float) -> None:
        """Remember that ``worker``, the process ``incarnation`` of it, created ``id``."""
        if len(id) > ID_LIMIT:
            return
        self.receive(id, worker, incarnation, now)
        if self._notify is not None:
            self._notify(id, worker.url)

    def receive(self, id: str, worker: Worker, incarnation: object, now: float) -> None:
        """Remember the same, which another process has told."""
        self._entries[id] = (worker, incarnation, now)
        self._entries.move_to_end(id)
        while len(self._entries) > self._limit or self._oldest() < now - TTL:
            self._entries.popitem(last=False)

    def creator(self, id: str, now: float) -> Worker | None:
        """Return the worker that has ``id``; None: it is not known, or that process has ended."""
        entry = self._entries.pop(id, None)
        if entry is None:
            return None
        worker, incarnation, used = entry
        if used < now - TTL or worker.incarnation is not incarnation or worker.state is WorkerState.GONE:
            return None
        self._entries[id] = (worker, incarnation, now)
        return worker

    def _oldest(self) -> float:
        return next(iter(self._entries.values()))[2]
