"""Which workers have room for a request of some length."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from gateway.cards.token_budget import TokenBudget
from gateway.cards.values import CardValues
from gateway.errors import ContextLength, NoWorker, UnknownModel
from gateway.fleet.registry import Fleet
from gateway.fleet.states import WorkerState
from gateway.fleet.worker import Worker
from gateway.routing.policy import POLICIES
from tests.fleet.support import CAPABILITY, fleet_with, member


def budgeted(
    name: str, limit: int | None, *models: str, strict: bool = True, **by_model: TokenBudget
) -> Worker:
    """Return a worker with this limit, None for none, and with other budgets for some of its models."""
    worker = member(name, *models)
    card = CardValues(token_budget=None if limit is None else TokenBudget(limit, strict, strict))
    others = {model: CardValues(token_budget=budget) for model, budget in by_model.items()}
    worker.infos = {name: replace(info, card=card, model_cards=others) for name, info in worker.infos.items()}
    return worker


def hosts(fleet: Fleet, longest: tuple[int, int], model: str | None = None) -> set[str]:
    """Return the hosts of the workers that such requests are sent to."""
    leased = [fleet.lease(CAPABILITY, model, (), None, longest) for _ in range(16 * len(fleet.workers))]
    for worker in leased:
        fleet.release(worker)
    return {worker.address.host for worker in leased}


@pytest.mark.parametrize("policy", POLICIES)
def test_request_is_leased_a_worker_whose_budget_does_not_refuse_it(policy: str) -> None:
    """One without a budget, or whose engine judges by itself, may get any."""
    chosen = POLICIES[policy](Random(1))
    fleet = fleet_with(budgeted("small", 10), budgeted("large", 20), policy=chosen)
    assert hosts(fleet, (9, 10)) == {"small", "large"}
    assert hosts(fleet, (9, 11)) == hosts(fleet, (19, 20)) == {"large"}
    assert hosts(fleet, (0, 0)) == {"small", "large"}  # a length that is not known
    fleet.add(budgeted("unknown", None))
    fleet.add(budgeted("truncating", 5, strict=False))
    assert hosts(fleet, (90, 91)) == {"unknown", "truncating"}


@pytest.mark.parametrize(("longest", "actual"), [((20, 21), 20), ((15, 21), 21)])
def test_request_that_is_too_long_for_all_is_refused_with_the_largest_limit(
    longest: tuple[int, int], actual: int
) -> None:
    fleet = fleet_with(budgeted("small", 10), budgeted("large", 20), budgeted("smallest", 5))
    with pytest.raises(ContextLength) as refused:
        fleet.lease(CAPABILITY, None, (), None, longest)
    assert refused.value.numbers is not None
    assert (refused.value.numbers.limit, refused.value.numbers.actual) == (20, actual)


def test_budgets_are_those_of_the_workers_that_serve_the_model() -> None:
    fleet = fleet_with(budgeted("a", 10, "short", "adapter"), budgeted("b", 20, "long"))
    assert hosts(fleet, (14, 15), "long") == {"b"}
    for model in ("short", "adapter"):
        with pytest.raises(ContextLength):
            fleet.lease(CAPABILITY, model, (), None, (14, 15))
    fleet.add(budgeted("c", 10, "short", "wide", wide=TokenBudget(20, True, True)))
    assert hosts(fleet, (14, 15), "wide") == {"c"}
    with pytest.raises(UnknownModel):
        fleet.lease(CAPABILITY, "other", (), None, (90, 91))


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (WorkerState.DEAD, NoWorker),
        (WorkerState.CORDONED, NoWorker),
        (WorkerState.DRAINING, ContextLength),
    ],
)
def test_request_is_refused_only_if_no_worker_that_may_come_back_has_room(
    state: WorkerState, error: type[Exception]
) -> None:
    large = budgeted("large", 20)
    large.state = state
    with pytest.raises(error):
        fleet_with(budgeted("small", 10), large).lease(CAPABILITY, None, (), None, (14, 15))
