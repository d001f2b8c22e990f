"""Every field of the engine is in the table."""

from __future__ import annotations

import json
from typing import Any

from gateway.formats.sglang.body_fields import RESERVED
from gateway.formats.sglang.join.rules import ECHOED, META, NOT_ECHOED, TOP, MergeRule
from gateway.formats.sglang.request import BodyFields, Sampling
from gateway.formats.sglang.vocabulary import KnownMembers
from scripts.known_fields.sglang import FIELDS, REFUSED, Use
from tests.formats.sglang.support import TIMINGS, recorded
from tests.formats.support import FieldTable


class TestFields(FieldTable):
    engine = "sglang"
    fields = FIELDS
    kinds = (Use, MergeRule)


def test_fields_that_are_read_are_those_of_the_parser() -> None:
    """The table and the parser have the same fields; ``model`` is no field of the engine."""
    read = {name for name, use in FIELDS["request"].items() if use in (Use.READ, Use.NAMES)}
    looked_at = {*BodyFields.__struct_fields__, *KnownMembers.__struct_fields__}
    assert read == looked_at - set(RESERVED) - {"model"}
    assert {name for name, use in FIELDS["sampling"].items() if use is Use.READ} == set(
        Sampling.__struct_fields__
    )


def test_fields_that_are_reserved_are_those_the_parser_refuses() -> None:
    assert set(RESERVED) == REFUSED


def test_rules_beside_the_table_name_what_is_in_it() -> None:
    assert set(META) >= TIMINGS | ECHOED | {NOT_ECHOED}
    assert {META[name] for name in ECHOED} == {MergeRule.APPEND}


def _objects(body: str) -> list[dict[str, Any]]:
    texts = [text.removeprefix("data: ") for text in body.split("\n\n")]
    found = [json.loads(text) for text in texts if text[:1] in ("{", "[") and text != "[DONE]"]
    return [one for each in found for one in (each if isinstance(each, list) else [each])]


def test_recorded_replies_have_no_other_members() -> None:
    for record in recorded("generate").values():
        if record.get("status") != 200:
            continue
        for found in _objects(record["body"]):
            assert found.keys() - {"error"} <= TOP.keys()
            assert found.get("meta_info", {}).keys() <= META.keys()
