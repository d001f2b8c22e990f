"""No field of the engine is unheard of."""

from __future__ import annotations

import json
from enum import Enum

import pytest

from gateway.formats.vllm.fields import FIELDS, Use
from gateway.formats.vllm.projection import Request
from gateway.formats.vllm.rules import CHOICE, REPLY, USAGE, Rule
from tests.formats.vllm.support import FIXTURES, recorded

#: The names that the pinned release has, by group.
GROUPS: dict[str, list[str]] = json.loads((FIXTURES / "fields.json").read_text())["groups"]


def test_groups_are_the_same() -> None:
    """Each kind of object has its table."""
    assert FIELDS.keys() == GROUPS.keys()


@pytest.mark.parametrize("group", sorted(GROUPS))
def test_every_field_of_the_engine_is_classified(group: str) -> None:
    """What the engine's sources name is in the table, and the table names nothing else."""
    assert set(FIELDS[group]) == set(GROUPS[group])
    assert all(isinstance(use, Use | Rule) for use in FIELDS[group].values())


@pytest.mark.parametrize("kind", [Use, Rule])
def test_every_class_has_a_field(kind: type[Enum]) -> None:
    """A class that no field has is a rule nobody needs."""
    used: set[Enum] = {use for group in FIELDS.values() for use in group.values()}
    assert set(kind) == {use for use in used if isinstance(use, kind)}


def test_fields_that_are_peeked_at_are_in_a_request() -> None:
    """The table and the parser speak of the same fields."""
    read = {
        name for group in ("request", "sampling") for name, use in FIELDS[group].items() if use is Use.PEEKED
    }
    assert {"token_ids", "features", "model", "stream", "cache_salt", "priority", "max_tokens"} <= set(
        Request.__struct_fields__
    )
    assert read == {
        *("token_ids", "features", "model", "stream", "cache_salt", "priority", "sampling_params"),
        *("n", "max_tokens"),
    }


def test_recorded_replies_have_no_other_keys() -> None:
    """The recordings are of the release before; what it sent is in the table of this one."""
    for record in recorded("generate").values():
        if record.get("status") != 200:
            continue
        texts = [text.removeprefix("data: ") for text in record["body"].split("\n\n")]
        for found in (json.loads(text) for text in texts if text.startswith("{")):
            assert found.keys() - {"error"} <= REPLY.keys()
            assert (found.get("usage") or {}).keys() <= set(USAGE)
            for choice in found.get("choices", ()):
                assert choice.keys() <= CHOICE.keys()
