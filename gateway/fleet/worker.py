"""One worker, as data.

Owns: what was registered and what its probes found, its state, its load and its connections. Must never
enter: a dialect, HTTP, what changes any of it (Fleet does).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from uuid import NAMESPACE_URL, uuid5

from gateway.fleet.card import Card, CardSource
from gateway.fleet.quotas import WorkerQuotas
from gateway.fleet.replies import ReplyHistory
from gateway.fleet.states import USABLE, WorkerState
from gateway.fleet.worker_cordons import WorkerCordons
from gateway.formats.contract import ANY_OF
from gateway.formats.optional import WorkerLoad
from gateway.formats.worker_contract import WorkerInfo
from gateway.routing.rendezvous import seed_of
from gateway.stores.record import WorkerRecord
from gateway.upstream.address import REMEMBERED, Address, identity_of
from gateway.upstream.pool import Pool

#: A monotonic time in the past of every other one.
NEVER = float("-inf")
#: The end of an ejection while a trial request runs.
FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class View:
    """A worker as one format sees it (gateway.formats.contract.WorkerView)."""

    prefix: bytes
    authorization: bytes | None = field(repr=False)
    info: WorkerInfo | None


@lru_cache(REMEMBERED)
def id_of(url: str) -> str:
    """Return the id of the worker at ``url``."""
    return str(uuid5(NAMESPACE_URL, url))


class Vitals:
    """What probes and replies have shown of a worker's health."""

    __slots__ = (
        "busy_until",
        "compared_at",
        "ejected_until",
        "ejections",
        "failed_probes",
        "foreign_requests",
        "held_places",
        "last_failed_key",
        "last_reply_at",
        "load_request",
        "logged_reason",
        "not_ready_since",
        "on_trial",
        "reason_logged_at",
        "refusals",
        "replies",
        "reported",
    )

    def __init__(self) -> None:
        #: Failed probes in a row.
        self.failed_probes = 0
        #: Monotonic time of the last tokens or good reply; a recent one makes up for a failed probe.
        self.last_reply_at = NEVER
        #: Monotonic time; until then a good probe leaves the worker busy, as it answered 429 or 503.
        self.busy_until = NEVER
        #: How often in a row it answered 429 or 503.
        self.refusals = 0
        #: The load that it reported last, and how many of these requests are not this gateway's.
        self.reported: WorkerLoad | None = None
        self.foreign_requests = 0
        #: Index of the request for its load that it answers; it did not answer those before.
        self.load_request = 0
        #: Monotonic time since when its health probes report that it takes no requests; None: it takes them.
        self.not_ready_since: float | None = None
        self.replies = ReplyHistory()
        #: The routing key of the last failed request.
        self.last_failed_key: str | None = None
        #: How often in a row it was ejected (gateway.fleet.health.outliers), and the monotonic time until
        #: which no probe makes it ready; without end during a trial request.
        self.ejections = 0
        self.ejected_until = NEVER
        #: True from an ejection until a good reply: it gets one request at a time.
        self.on_trial = False
        #: Monotonic time of the last comparison with other workers.
        self.compared_at = NEVER
        #: The reason that was logged last, and the monotonic time of that.
        self.logged_reason = ""
        self.reason_logged_at = NEVER
        #: Failed replies that still count in ``Worker.occupancy``.
        self.held_places = 0


class Worker:
    """One worker. ``in_flight`` counts the leases of this gateway and is exact; ``occupancy`` adds the failed
    replies that still hold a place.

    ``infos`` has one entry per format that recognised it, by the format's name. ``incarnation`` is an object
    that is replaced each time the worker is found dead: it tells one process at the URL from the next.
    """

    __slots__ = (
        "_views",
        "address",
        "authorization",
        "card",
        "card_conflicts",
        "cordons",
        "in_flight",
        "incarnation",
        "infos",
        "occupancy",
        "pool",
        "quotas",
        "reason",
        "record",
        "record_source",
        "seed",
        "server_entries",
        "state",
        "url",
        "vitals",
    )

    def __init__(
        self,
        address: Address,
        *,
        declared_format: str | None = None,
        authorization: bytes | None = None,
        record: WorkerRecord | None = None,
    ) -> None:
        self.address = address
        #: The URL exactly as it was registered first.
        self.url = address.url
        self.seed = seed_of(address.identity)
        self.record = record or WorkerRecord(address.url, format=declared_format)
        self.pool: Pool  # set by the fleet that takes the worker in
        self.quotas: WorkerQuotas  # likewise
        #: Who wrote the record: one who registered the worker here, or another one into the store.
        self.record_source = CardSource.REGISTRATION
        #: What is known of it; and the members in which the cards of workers of its model differ.
        self.card = Card()
        self.card_conflicts: Sequence[str] = ()
        self.authorization = authorization
        self.state = WorkerState.JOINING
        self.reason = "not probed yet"
        self.cordons = WorkerCordons()
        self.infos: Mapping[str, WorkerInfo] = {}
        self._views: dict[str, View] = {}
        self.in_flight = 0
        self.occupancy = 0
        #: All entries of its server (gateway.fleet.same_server) as they joined; () before it did.
        self.server_entries: Sequence[Worker] = ()
        self.incarnation = object()
        self.vitals = Vitals()

    def __repr__(self) -> str:
        return f"<Worker {self.url} {self.state} in_flight={self.in_flight}>"

    @property
    def id(self) -> str:
        """The same in every gateway and after every start."""
        return id_of(self.url)

    @property
    def identity(self) -> str:
        """The text that is the same for all spellings of its URL."""
        return identity_of(self.url)

    @property
    def declared_format(self) -> str | None:
        """The format that its owner says it speaks; None: any that its probes find."""
        return self.record.format

    @property
    def usable(self) -> bool:
        """True if it may get requests now."""
        return self.state in USABLE

    @property
    def load(self) -> int:
        """Its occupancy, and the requests of others when it last reported its load."""
        return self.occupancy + self.vitals.foreign_requests

    @property
    def in_trial(self) -> bool:
        """True while it has a trial request."""
        return self.vitals.on_trial and self.vitals.ejected_until == FOREVER

    @property
    def other_entries(self) -> Sequence[Worker]:
        """The other entries of its server, in the order they joined."""
        return tuple(entry for entry in self.server_entries if entry is not self)

    @property
    def same_server_as(self) -> Worker | None:
        """The first entry of its server; None if that is this one."""
        entries = self.server_entries
        return entries[0] if entries and entries[0] is not self else None

    @property
    def weight_version(self) -> str | None:
        """The weight version that one of its formats reports."""
        return next(
            (info.card.weight_version for info in self.infos.values() if info.card.weight_version), None
        )

    @property
    def reports_paused(self) -> bool:
        """True if it reports that it runs no requests until it is resumed."""
        return any(info.paused for info in self.infos.values())

    def view(self, format_name: str) -> View:
        """Return what the format called ``format_name`` may know of the worker.

        The format of a route that workers of several formats serve has no info of its own: it gets the info
        of the engine.
        """
        info = self.infos.get(format_name) or next(
            (info for info in self.infos.values() if info.usable), None
        )
        view = self._views.get(format_name)
        if view is None or view.info is not info:
            view = self._views[format_name] = View(self.address.prefix, self.authorization, info)
        return view

    def model(self, capability: str) -> str | None:
        """Return the base model that it serves as ``capability``; None: it reports none, or serves none."""
        info = self.offers(capability)
        return None if info is None else next(iter(info.models), self.record.model)

    def offers(self, capability: str) -> WorkerInfo | None:
        """Return its info for ``capability``; None if it cannot serve that."""
        for info in self.infos.values():
            if info.usable and (info.capability == capability or info.capability in capability.split(ANY_OF)):
                return info
        return None
