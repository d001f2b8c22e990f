"""Every field of the engine is in the table."""

from __future__ import annotations

import json

from gateway.formats.vllm.join.rules import CHOICE, REPLY, USAGE, MergeRule
from gateway.formats.vllm.request import Request
from scripts.known_fields.vllm import FIELDS, Use
from tests.formats.support import FieldTable
from tests.formats.vllm.support import recorded


class TestFields(FieldTable):
    engine = "vllm"
    fields = FIELDS
    kinds = (Use, MergeRule)


def test_fields_that_are_read_are_in_a_request() -> None:
    """The table and the parser have the same fields."""
    read = {
        name for group in ("request", "sampling") for name, use in FIELDS[group].items() if use is Use.READ
    }
    assert {"token_ids", "features", "model", "stream", "cache_salt", "priority", "max_tokens"} <= set(
        Request.__struct_fields__
    )
    assert read == {
        *("token_ids", "features", "model", "stream", "cache_salt", "priority", "sampling_params"),
        *("n", "max_tokens"),
    }


def test_recorded_replies_have_no_other_keys() -> None:
    """The recordings are of an earlier release; its keys are in the table of this one."""
    for record in recorded("generate").values():
        if record.get("status") != 200:
            continue
        texts = [text.removeprefix("data: ") for text in record["body"].split("\n\n")]
        for found in (json.loads(text) for text in texts if text.startswith("{")):
            assert found.keys() - {"error"} <= REPLY.keys()
            assert (found.get("usage") or {}).keys() <= set(USAGE)
            for choice in found.get("choices", ()):
                assert choice.keys() <= CHOICE.keys()
