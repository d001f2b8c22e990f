"""The tokens that stand for a model's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.sim import tokens
from gateway.sim.tokens import Chooser


def chooser(prompt: list[int], draw: int = 0, eos_rate: float = 0.0) -> Chooser:
    return Chooser(tokens.pack(prompt), vocab_size=1000, eos=2, eos_rate=eos_rate, draw=draw)


def run(one: Chooser, count: int) -> list[int]:
    return [one.next(may_end=True, never=frozenset())[0] for _ in range(count)]


def test_prompt_with_half_an_output_continues_with_the_other_half() -> None:
    """As a greedy model does, so that a generation can be taken over."""
    complete = run(chooser([7, 8]), 10)
    assert run(chooser([7, 8, *complete[:4]]), 6) == complete[4:]


def test_end_comes_at_its_rate() -> None:
    many = run(chooser([7], eos_rate=0.1), 2000)
    assert 100 < many.count(2) < 300
    one = chooser([7], eos_rate=1.0)
    assert one.next(may_end=False, never=frozenset({2}))[0] != 2
    assert one.next(may_end=True, never=frozenset())[0] == 2


def test_bias_and_allowed_ids_decide() -> None:
    """A strong bias leaves one id, a list of allowed ids only its own."""
    one = chooser([7])
    one.restrict(None, {9: 100.0, 8: 1.0})
    assert run(one, 5) == [9] * 5
    one.restrict([11, 12], None)
    assert set(run(one, 50)) == {11, 12}


@given(st.lists(st.integers(3, 999), max_size=20))
def test_text_reads_back_as_its_tokens(ids: list[int]) -> None:
    """``tokenize`` undoes ``words``."""
    assert tokens.tokenize(tokens.words(ids), 1000) == ids


@given(st.text())
def test_any_text_has_tokens_of_the_vocabulary(text: str) -> None:
    assert all(3 <= token < 1000 for token in tokens.tokenize(text, 1000))


def test_special_tokens_have_no_text() -> None:
    assert tokens.words([0, 1, 2]) == ""


def test_logprobs_fall_with_the_rank() -> None:
    """The first is the token itself, no id comes twice, and the list is as long as asked."""
    top = tokens.ranked(12345, 7, 20, 1000)
    assert top[0][0] == 7
    assert len({token for token, _ in top}) == 20
    assert [value for _, value in top] == sorted((value for _, value in top), reverse=True)
    assert all(value <= 0 for _, value in top)
