"""A token budget: its JSON form is read strictly, and its rule refuses what has no room."""

from __future__ import annotations

import pytest

from gateway.cards.token_budget import TokenBudget


@pytest.mark.parametrize(
    ("document", "budget"),
    [
        ({"combined_limit": 9}, TokenBudget(9, False, False)),
        ({"combined_limit": 0, "reject_prompt_overflow": True}, TokenBudget(0, True, False)),
        ({"combined_limit": 2**32 - 1, "reject_total_overflow": True}, TokenBudget(2**32 - 1, False, True)),
    ],
)
def test_a_missing_switch_is_false_and_the_written_form_has_all_members(
    document: dict[str, object], budget: TokenBudget
) -> None:
    assert TokenBudget.read(document) == budget
    assert TokenBudget.read(budget.document()) == budget
    assert budget.document().keys() == {"combined_limit", "reject_prompt_overflow", "reject_total_overflow"}


@pytest.mark.parametrize(
    ("document", "at_fault"),
    [
        (None, "object"),
        ([9, True, True], "object"),
        ({}, "combined_limit"),
        *(({"combined_limit": wrong}, "combined_limit") for wrong in (None, True, -1, 9.0, "9", 2**32)),
        *(
            ({"combined_limit": 9, name: wrong}, name)
            for name in ("reject_prompt_overflow", "reject_total_overflow")
            for wrong in (None, 1, "true")
        ),
        ({"combined_limit": 9, "reject_prompt": True}, "reject_prompt"),
    ],
)
def test_a_wrong_member_is_named(document: object, at_fault: str) -> None:
    with pytest.raises(ValueError, match=at_fault):
        TokenBudget.read(document)


@pytest.mark.parametrize(
    ("prompt", "reply", "too_long"),
    [
        (31, 1, ""),
        (31, None, ""),
        (31, 0, ""),  # room for one token, as if it were left open
        (16, 16, ""),  # exactly the limit
        (16, 17, "total"),
        (31, 2, "total"),
        (32, 1, "prompt"),  # no room for one token
        (32, None, "prompt"),
        (33, 0, "prompt"),
    ],
)
def test_the_rule_refuses_what_has_no_room_and_leaves_the_rest_to_the_engine(
    prompt: int, reply: int | None, too_long: str
) -> None:
    assert TokenBudget(32, True, True).refuses(prompt, reply) is bool(too_long)
    assert not TokenBudget(32, False, False).refuses(prompt, reply)
    assert TokenBudget(32, True, False).refuses(prompt, reply) is (too_long == "prompt")
    assert TokenBudget(32, False, True).refuses(prompt, reply) is (too_long == "total")


def test_nothing_has_room_in_a_limit_of_zero() -> None:
    assert TokenBudget(0, True, True).refuses(0, None)
