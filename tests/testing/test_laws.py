"""Each law can fail: for each there is a format that breaks it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import Phase, settings

from gateway.testing import laws
from gateway.testing.contract import FormatContract
from gateway.testing.laws import LAWS, Law
from tests.testing import support
from tests.testing.support import Break, JoiningEcho, JoiningEchoModel, reads_with

BROKEN: tuple[tuple[Law, Break], ...] = (
    (laws.parse_and_project_are_total, support.chokes),
    (laws.splice_then_unsplice_is_the_identity, support.keeps_the_clients_tag),
    (laws.splice_then_unsplice_is_the_identity, support.respells),
    (laws.splice_then_unsplice_is_the_identity, support.shows_the_private_tag),
    (laws.relay_is_the_identity, reads_with(support.Holds)),
    (laws.recutting_changes_nothing, reads_with(support.TakesReadsForLines)),
    (laws.truncated_stream_is_never_complete, reads_with(support.AcceptsAnyEnd)),
    (laws.stream_and_unary_give_the_same_reply, support.joins_backwards),
    (laws.joining_is_associative, support.joins_a_word_a_line),
    (laws.facts_agree, support.counts_twice),
    (laws.base64_survives, support.cuts_arrays),
)


@pytest.fixture(autouse=True)
def _as_found() -> Iterator[None]:
    """Load a profile that finds a failure without making it smaller."""
    before = settings.get_current_profile_name()
    settings.register_profile("as-found", phases=[Phase.generate], report_multiple_bugs=False, database=None)
    settings.load_profile("as-found")
    yield
    settings.load_profile(before)


class Model(JoiningEchoModel):
    """The sample's model with a format of a class of its own."""

    def __init__(self) -> None:
        self.kind = type("Echo", (JoiningEcho,), {})

    @property
    def format(self) -> Any:
        return self.kind()


def contract(*chosen: Law, examples: int, declared: tuple[str, ...] = ()) -> FormatContract:
    class Contract(FormatContract):
        model = Model()
        cases = examples
        laws = chosen
        silent = frozenset(declared)

    return Contract()


@pytest.mark.parametrize(("law", "break_it"), BROKEN)
def test_format_that_breaks_a_law_is_found_out(law: Law, break_it: Break) -> None:
    suite: Any = contract(law, examples=200)
    break_it(suite.model.kind)
    with pytest.raises((AssertionError, KeyError, TypeError, ValueError)):
        suite.test_laws_hold()


def test_each_law_has_a_format_that_breaks_it_and_the_same_format_unbroken_passes() -> None:
    assert set(LAWS) == {law for law, _ in BROKEN}
    contract(*LAWS, examples=100).test_laws_hold()


def test_law_that_applies_to_nothing_is_a_failure_unless_that_is_declared_and_true() -> None:
    """A model that draws too little does not pass by accident."""

    def never(*_: Any) -> bool:
        return False

    contract(never, examples=5, declared=("never",)).test_laws_hold()
    for suite in (
        contract(never, examples=5),
        contract(laws.facts_agree, examples=5, declared=("facts_agree",)),
    ):
        with pytest.raises(AssertionError, match="apply to no exchange"):
            suite.test_laws_hold()
