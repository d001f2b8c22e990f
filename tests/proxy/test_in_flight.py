"""Ids in flight: no dispatch id can touch another exchange, whatever clients call theirs."""

from __future__ import annotations

from itertools import permutations, product

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from gateway.formats.contract import Ids
from gateway.proxy.in_flight import RESERVED, InFlight

#: Few letters, so that ids clash; some that only sort oddly; and any text.
NAMES = st.text("ab7~\x00\uffff\ud800\U0010ffff", max_size=4) | st.text()


def safe(named: tuple[str, ...], used: list[str]) -> bool:
    """By comparing each with every other and with all in use."""
    pairs = [*product(named, used), *product(used, named), *permutations(named, 2)]
    among_ok = not any(one.startswith(two) for one, two in pairs)
    return all(named) and among_ok and not any(name.startswith(RESERVED) for name in named)


class Claims(RuleBasedStateMachine):
    """Claims and releases in any order, beside a plain list of what is in use."""

    claims = Bundle("claims")

    def __init__(self) -> None:
        super().__init__()
        self.in_flight: InFlight[Ids] = InFlight()
        self.used: list[str] = []
        self.running: list[Ids] = []

    @rule(target=claims, named=st.lists(NAMES, max_size=3).map(tuple), usable=st.booleans())
    def claim(self, named: tuple[str, ...], usable: bool) -> Ids:
        expected = bool(named) and usable and safe(named, self.used)
        ids = self.in_flight.claim(named, usable)
        assert (ids.dispatch == named) is expected
        assert ids.public == (named or ids.dispatch)
        assert len(ids.dispatch) == max(1, len(named))
        self.used += ids.dispatch
        self.running.append(ids)
        self.in_flight.enter(ids, ids)
        return ids

    @rule(ids=consumes(claims))
    def release(self, ids: Ids) -> None:
        self.in_flight.leave(ids, ids)
        self.in_flight.release(ids)
        self.running.remove(ids)
        for dispatch in ids.dispatch:
            self.used.remove(dispatch)

    @invariant()
    def no_id_is_a_prefix_of_another(self) -> None:
        assert len(self.in_flight) == len(self.used)
        assert not any(one.startswith(two) for one, two in permutations(self.used, 2))

    @invariant()
    def all_exchanges_with_exactly_a_public_id_are_found(self) -> None:
        assert set(self.in_flight.all()) == set(self.running)
        for name in {"", "a", *(name for ids in self.running for name in ids.public)}:
            assert set(self.in_flight.find(name)) == {ids for ids in self.running if name in ids.public}


# In every order of claims and releases, an id is the client's own if and only if that is safe.
TestClaims = Claims.TestCase
TestClaims.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize(
    ("running", "named"),
    [
        ("job-1", "job-10"),
        ("job-10", "job-1"),
        ("job-1", "job-1"),
        ("é", "éa"),
        ("a\x00", "a"),
        (10_000 * "x" + "1", 10_000 * "x" + "11"),
    ],
    ids=["extended", "prefix", "equal", "wide", "nul", "long"],
)
def test_prefix_of_a_running_id(running: str, named: str) -> None:
    in_flight: InFlight[object] = InFlight()
    in_flight.claim((running,))
    ids = in_flight.claim((named,))
    assert ids.public == (named,)
    assert ids.private


def test_request_without_an_id_gets_one_that_is_also_the_public_one() -> None:
    in_flight: InFlight[object] = InFlight()
    made = [in_flight.claim(()) for _ in range(100)]
    assert all(ids.public == ids.dispatch for ids in made)
    assert len({ids.dispatch[0] for ids in made}) == 100
    assert all(len(ids.dispatch[0]) >= 32 and ids.dispatch[0].isalnum() for ids in made)


def test_clients_that_run_under_every_hex_digit_cannot_keep_the_gateway_from_making_an_id() -> None:
    in_flight: InFlight[object] = InFlight()
    for digit in "0123456789abcdef":
        assert not in_flight.claim((digit,)).private
    made = [in_flight.claim(()).dispatch[0] for _ in range(20)]
    assert all(name.startswith(RESERVED) and name.isascii() and name.isprintable() for name in made)
    assert not any(one.startswith(two) for one, two in permutations(made, 2))


def test_second_release_is_a_fault_that_shows_and_frees_nobody_elses_id() -> None:
    in_flight: InFlight[object] = InFlight()
    for name in "abc":
        in_flight.claim((name,))
    in_flight.release(Ids(("b",), ("b",)))
    for stranger in "bz":
        with pytest.raises(KeyError):
            in_flight.release(Ids((stranger,), (stranger,)))
    assert len(in_flight) == 2
    assert in_flight.claim(("a",)).private
    assert in_flight.claim(("c",)).private


def test_whoever_walks_over_all_exchanges_may_end_them_meanwhile() -> None:
    in_flight: InFlight[object] = InFlight()
    runs = {object(): in_flight.claim((name,)) for name in "abc"}
    for item, ids in runs.items():
        in_flight.enter(ids, item)
    for item in in_flight.all():
        in_flight.leave(runs[item], item)
    assert list(in_flight.all()) == []
