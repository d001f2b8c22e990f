"""One engine server as the gateway knows it.

Owns: what was registered and what its probes told, its state, its load and its connections, as data. Must
never enter: a dialect, HTTP, what changes any of it (Fleet does).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import NAMESPACE_URL, uuid5

from gateway.fleet.quotas import Quotas
from gateway.fleet.states import USABLE, CordonSource, WorkerState
from gateway.formats.contract import ANY_OF
from gateway.formats.optional import WorkerLoad
from gateway.formats.worker_contract import WorkerInfo
from gateway.routing.rendezvous import seed_of
from gateway.stores.record import WorkerRecord
from gateway.upstream.address import Address
from gateway.upstream.pool import Pool

_NEVER = float("-inf")
#: ``Worker.allowed_weights`` of a worker that was not uncordoned with too old weights.
NO_WEIGHTS = object()


@dataclass(frozen=True, slots=True)
class View:
    """A worker as one format sees it (gateway.formats.contract.WorkerView)."""

    prefix: bytes
    authorization: bytes | None = field(repr=False)
    info: WorkerInfo | None


def id_of(url: str) -> str:
    """The id of the worker at ``url``, the same in every gateway."""
    return str(uuid5(NAMESPACE_URL, url))


class Worker:
    """One worker. ``in_flight`` counts leases held by this gateway and is exact.

    ``infos`` has one entry per format that recognised it, by the format's name. ``only`` is the format its
    owner said it speaks, None: whatever its probes tell. ``life`` is an object that is replaced each time it
    is found dead: what tells the process behind the URL from the one after it. ``holds`` says who holds it
    back, and why.
    """

    __slots__ = (
        "_views",
        "abort_slots",
        "address",
        "authorization",
        "busy_until",
        "quotas",
        "cordons",
        "id",
        "in_flight",
        "infos",
        "last_reply_at",
        "incarnation",
        "load_question",
        "others",
        "pool",
        "reason",
        "record",
        "reported",
        "seed",
        "state",
        "failed_probes",
        "url",
        "allowed_weights",
    )

    def __init__(
        self,
        address: Address,
        *,
        only: str | None = None,
        authorization: bytes | None = None,
        record: WorkerRecord | None = None,
    ) -> None:
        self.address = address
        #: Exactly as it was given.
        self.url = address.url
        #: The same for a URL, whenever and wherever it is registered.
        self.id = id_of(address.url)
        self.seed = seed_of(address.url)
        self.record = record or WorkerRecord(address.url, format=only)
        self.pool: Pool  # set by the fleet that takes the worker in
        self.quotas: Quotas  # likewise
        self.authorization = authorization
        self.state = WorkerState.JOINING
        self.reason = "not probed yet"
        self.cordons: dict[CordonSource, str] = {}
        #: The weight version at which it was uncordoned although that is too low; None: it told none.
        self.allowed_weights: object = NO_WEIGHTS
        self.infos: Mapping[str, WorkerInfo] = {}
        self._views: dict[str, View] = {}
        self.in_flight = 0
        #: What it last told of its load, and how much of that was no request of this gateway.
        self.reported: WorkerLoad | None = None
        self.others = 0
        #: Which of the questions for its load it answers; those before it gave no answer.
        self.load_question = 0
        self.incarnation = object()
        #: Failed probes in a row.
        self.failed_probes = 0
        #: Monotonic time of its last tokens or whole reply; a sign of life that spares a probe.
        self.last_reply_at = _NEVER
        #: Monotonic time until which a good probe does not end what a 429 or 503 began.
        self.busy_until = _NEVER
        #: Bounds the aborts under way at it (gateway.proxy.aborts); None: there was none yet.
        self.abort_slots: asyncio.Semaphore | None = None

    def __repr__(self) -> str:
        return f"<Worker {self.url} {self.state} in_flight={self.in_flight}>"

    @property
    def only(self) -> str | None:
        return self.record.format

    @property
    def usable(self) -> bool:
        """Whether requests may go to it now."""
        return self.state in USABLE

    @property
    def load(self) -> int:
        """Requests at the worker: this gateway's now, and those that others gave it, by its last word."""
        return self.in_flight + self.others

    @property
    def weight_version(self) -> str | None:
        """As any of its formats told."""
        return next((info.weight_version for info in self.infos.values() if info.weight_version), None)

    @property
    def says_paused(self) -> bool:
        """Whether it told that it runs no requests until it is resumed."""
        return any(info.paused for info in self.infos.values())

    def view(self, format_name: str) -> View:
        """What the format called ``format_name`` may know of it.

        That of a route that several formats' workers serve is no worker's own: it is told the info of its
        engine.
        """
        info = self.infos.get(format_name) or next(
            (info for info in self.infos.values() if info.usable), None
        )
        view = self._views.get(format_name)
        if view is None or view.info is not info:
            view = self._views[format_name] = View(self.address.prefix, self.authorization, info)
        return view

    def offers(self, capability: str) -> WorkerInfo | None:
        """Its info for ``capability`` if it can serve that, else None."""
        for info in self.infos.values():
            if info.usable and (info.capability == capability or info.capability in capability.split(ANY_OF)):
                return info
        return None
