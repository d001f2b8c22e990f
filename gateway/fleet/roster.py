"""The workers that can serve a capability, computed once per change of the fleet instead of once per request.

Owns: the usable workers of one capability, by model and in the order in which they are used. Must never
enter: a change of a worker's state, the choice among equal workers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from gateway.cards.token_budget import MOST_TOKENS
from gateway.errors import ContextLength, InvalidRequest, TooLong, UnknownModel
from gateway.fleet.states import USABLE, WorkerState
from gateway.fleet.worker import Worker
from gateway.formats.worker_contract import WorkerInfo

_smallest_limit = attrgetter("card.smallest_limit")

#: Workers by state, best first: any of the first group is used before any of the next. No group is empty.
Tiers = tuple[tuple[Worker, ...], ...]


@dataclass(frozen=True, slots=True)
class Roster:
    """The usable workers of one capability, and by model which of them serve it."""

    tiers: Tiers = ()
    by_model: Mapping[str, Tiers] = field(default_factory=dict)
    #: Models that only members which are not usable now serve: a request for one gets no other model.
    away: frozenset[str] = frozenset()
    #: All workers that serve it when they are usable, and by model.
    members: Sequence[Worker] = ()
    members_by_model: Mapping[str, Sequence[Worker]] = field(default_factory=dict)
    #: True if the members have several base models, so that a request has to name one.
    mixed: bool = False
    #: The smallest limit of a token budget: a request that is no longer need not be compared with any.
    smallest_limit: int = MOST_TOKENS

    @property
    def workers(self) -> Sequence[Worker]:
        """All usable workers."""
        return tuple(worker for tier in self.tiers for worker in tier)

    def of_model(self, model: str | None) -> Tiers:
        """Return the usable workers that serve ``model``. Raises UnknownModel, and InvalidRequest if no model
        is named and there are several."""
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

    def name_of(self, model: str | None) -> str | None:
        """Return the model that requests for ``model`` are meant for, usable now or not; None: not known."""
        if model is not None:
            return model if model in self.members_by_model else None
        return None if self.mixed else next(iter(self.members_by_model), None)

    def members_of(self, model: str | None) -> Sequence[Worker]:
        """Return the workers of ``of_model``, and those that would be among them if they were usable."""
        return self.members if model is None else self.members_by_model.get(model, self.members)

    def without_room(self, model: str | None, longest: tuple[int, int]) -> Collection[Worker]:
        """Return the members for ``model`` that may not be sent a request of this length (see ``longest`` of
        gateway.formats.contract.Projection).

        Raises ContextLength if there are no others, and what ``of_model`` raises.
        """
        if longest[1] <= self.smallest_limit:
            return ()
        self.of_model(model)
        prompt, reply = longest[0], longest[1] - longest[0]
        small: list[Worker] = []
        limit, others = 0, False
        for worker in self.members_of(model):
            budget = worker.card.of_model(model).values.token_budget
            if budget is not None and budget.refuses(prompt, reply):
                small.append(worker)
                limit = max(limit, budget.combined_limit)
            else:
                others = others or worker.state is not WorkerState.DRAINING
        if small and not others:
            raise ContextLength.of(TooLong(limit, prompt, reply))
        return small


def candidates(tiers: Tiers, excluding: Collection[Worker]) -> Sequence[Worker]:
    """Return the workers of the best group without those of ``excluding``; () if there is none."""
    if not excluding:
        return tiers[0] if tiers else ()
    for tier in tiers:
        if remaining := [worker for worker in tier if worker not in excluding]:
            return remaining
    return ()


def roster_of(capability: str, workers: Iterable[Worker]) -> Roster:
    """Return the roster of ``capability`` for the current states of ``workers``."""
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
        smallest_limit=min(map(_smallest_limit, members), default=MOST_TOKENS),
    )


def models_of(worker: Worker, info: WorkerInfo) -> tuple[str, ...]:
    """Return the models that the worker reported, or else the one it was registered with."""
    if not info.models and worker.record.model is not None:
        return (worker.record.model,)
    return info.models


def _tiers(workers: Sequence[Worker]) -> Tiers:
    by_state: dict[object, list[Worker]] = {}
    for worker in workers:
        by_state.setdefault(worker.state, []).append(worker)
    return tuple(tuple(by_state[state]) for state in USABLE if state in by_state)
