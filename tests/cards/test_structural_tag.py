"""The policy as text and on a card."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from gateway.cards.structural_tag import OFF, ON, StructuralTag
from tests.cards.policies import FALSE, FIELDS, REFUSED, TRUE


def test_text_of_a_flag_is_read_as_a_word_or_an_object() -> None:
    for text in (*TRUE, "{}", " {} "):
        assert StructuralTag.parse(text) == ON, text
    for text in FALSE:
        assert StructuralTag.parse(text) == OFF, text
    for text, members in FIELDS.items():
        assert StructuralTag.parse(text) == replace(ON, **members), text
        assert StructuralTag.parse(f" {text} ") == replace(ON, **members), text


@pytest.mark.parametrize("text", REFUSED)
def test_other_text_of_a_flag_is_refused_and_named(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(REFUSED[text])):
        StructuralTag.parse(text)


@pytest.mark.parametrize("text", ["[" * 9**5, '{"a":' * 9**5, f'{{"scope":{"9" * 5000}}}', '{"\\ud800":1}'])
def test_hostile_text_of_a_flag_is_a_short_error_of_one_line(text: str) -> None:
    with pytest.raises(ValueError) as raised:
        StructuralTag.parse(text)
    assert len(str(raised.value)) < 200
    assert str(raised.value).isprintable()


def test_card_has_every_field_but_one_that_is_null() -> None:
    member = {
        "scope": "always",
        "schema": "auto",
        "allow_tool_calls_with_structured_output": False,
        "reasoning_boundary": "auto",
        "tool_arguments_any_order": False,
    }
    assert ON.member() == member
    assert replace(ON, exclude_special_tokens=False).member() == {**member, "exclude_special_tokens": False}
    assert OFF.member() is None


def test_policy_has_one_meaning_as_text_and_on_a_card() -> None:
    for policy in (ON, OFF, *(StructuralTag.parse(text) for text in FIELDS)):
        assert StructuralTag.parse(str(policy)) == policy
        assert StructuralTag.of_card(json.loads(json.dumps(policy.members()))) == policy


def test_card_that_omits_the_scope_has_another_one_than_the_flag() -> None:
    assert StructuralTag.of_member({}) == replace(ON, scope="auto")
    assert StructuralTag.of_member({"schema": "strict"}) == replace(ON, scope="auto", schema="strict")


def test_older_members_of_a_card_are_written_and_read() -> None:
    strict = replace(ON, schema="strict")
    older = {
        "structural_tag_mode": "on",
        "structural_tag_scope": "always",
        "structural_tag_schema": "strict",
    }
    assert strict.members() == {"structural_tag": strict.member(), **older}
    assert OFF.members() == {
        "structural_tag": None,
        "structural_tag_mode": "off",
        "structural_tag_scope": "auto",
        "structural_tag_schema": "auto",
    }
    assert StructuralTag.of_card(older) == strict
    assert StructuralTag.of_card({"structural_tag_mode": "off", "structural_tag_scope": "always"}) == OFF
    assert StructuralTag.of_card({"structural_tag_scope": "auto"}) == replace(ON, scope="auto")
    assert StructuralTag.of_card({"structural_tag": None, **older}) == OFF
    assert StructuralTag.of_card({"url": "http://a:1"}) is None


@pytest.mark.parametrize("value", [True, False, "on", 1, [], {"scope": None}, {"scope": "Always"}, {"x": 1}])
def test_card_is_read_strictly_and_its_member_named(value: object) -> None:
    with pytest.raises(ValueError, match="structural_tag"):
        StructuralTag.of_card({"structural_tag": value})


@pytest.mark.parametrize("member", ["structural_tag_mode", "structural_tag_scope", "structural_tag_schema"])
def test_older_member_of_a_card_is_read_strictly_and_named(member: str) -> None:
    for value in (None, True, "On", 1):
        with pytest.raises(ValueError, match=member):
            StructuralTag.of_card({member: value})
