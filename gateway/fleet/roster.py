"""Who can serve what, worked out once per change of the fleet instead of once per request.

Owns: the usable workers of one capability, by model and in the order in which they are to be used. Must
never enter: a worker's state changing, the choice among equals.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gateway.errors import InvalidRequest, UnknownModel
from gateway.fleet.states import USABLE
from gateway.fleet.worker import Worker
from gateway.formats.worker_contract import WorkerInfo

#: Workers by how fit they are: any of the first group before any of the next. No group is empty.
Tiers = tuple[tuple[Worker, ...], ...]


@dataclass(frozen=True, slots=True)
class Roster:
    """The usable workers of one capability, and by model which of them serve it."""

    tiers: Tiers = ()
    by_model: Mapping[str, Tiers] = field(default_factory=dict)
    #: Models of members that are away for now: who asks for one gets no other.
    away: frozenset[str] = frozenset()
    #: All that can serve it when they are not away, and by model.
    members: Sequence[Worker] = ()
    members_by_model: Mapping[str, Sequence[Worker]] = field(default_factory=dict)
    #: True: the members do not all have the same base model, so a request has to name one.
    mixed: bool = False

    @property
    def workers(self) -> Sequence[Worker]:
        """All of them."""
        return tuple(worker for tier in self.tiers for worker in tier)

    def of_model(self, model: str | None) -> Tiers:
        """Those that serve ``model``. Raises UnknownModel and InvalidRequest (none named, and there are
        several)."""
        if model is not None and model in self.by_model:
            return self.by_model[model]
        if model in self.away:
            return ()
        if not self.mixed:
            # One base model: an unknown name may be an adapter loaded a moment ago; the engine knows.
            return self.tiers
        if model is None:
            raise InvalidRequest("several models are served here; name one in `model`", param="model")
        raise UnknownModel(f"no worker serves the model {model[:256]!r}")

    def members_of(self, model: str | None) -> Sequence[Worker]:
        """The workers of ``of_model`` and those that would be among them but are away."""
        return self.members if model is None else self.members_by_model.get(model, self.members)


def candidates(tiers: Tiers, excluding: Collection[Worker]) -> Sequence[Worker]:
    """The fittest workers that are not to be excluded, () if there is none."""
    if not excluding:
        return tiers[0] if tiers else ()
    for tier in tiers:
        if left := [worker for worker in tier if worker not in excluding]:
            return left
    return ()


def roster_of(capability: str, workers: Iterable[Worker]) -> Roster:
    """Who of ``workers`` can serve ``capability`` now."""
    members: list[Worker] = []
    known: dict[str, list[Worker]] = {}
    bases: set[str] = set()
    for worker in workers:
        info = worker.offers(capability)
        if info is None:
            continue
        models = models_of(worker, info)
        members.append(worker)
        bases.update(models[:1])  # the base model; adapters come and go
        for model in models:
            known.setdefault(model, []).append(worker)
    served = {model: tiers for model, of in known.items() if (tiers := _tiers(of))}
    return Roster(
        tiers=_tiers(members),
        by_model=served,
        away=frozenset(known.keys() - served.keys()),
        members=members,
        members_by_model=known,
        mixed=len(bases) > 1,
    )


def models_of(worker: Worker, info: WorkerInfo) -> tuple[str, ...]:
    """What it told, or else what was told of it."""
    if not info.models and worker.record.model is not None:
        return (worker.record.model,)
    return info.models


def _tiers(workers: Sequence[Worker]) -> Tiers:
    by_state: dict[object, list[Worker]] = {}
    for worker in workers:
        by_state.setdefault(worker.state, []).append(worker)
    return tuple(tuple(by_state[state]) for state in USABLE if state in by_state)
