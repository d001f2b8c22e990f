"""Ids outside the vocabulary are refused if its size is known."""

from __future__ import annotations

import pytest

from gateway.errors import InvalidRequest
from gateway.formats.sglang import FORMAT

TEN = FORMAT.configured({"vocab_size": "10"})


@pytest.mark.parametrize(
    ("members", "rule", "param"),
    [
        (b'"input_ids":[1,10]', "token_id_outside_vocabulary", "input_ids"),
        (b'"input_ids":[99999999999999999999]', "token_id_outside_vocabulary", "input_ids"),
        (b'"input_ids":[[1],[2,10]]', "token_id_outside_vocabulary", "input_ids"),
        (b'"input_ids":[1],"input_ids":[10]', "token_id_outside_vocabulary", "input_ids"),
        (b'"input_ids":[1],"token_ids_logprob":[9,10]', "token_id_outside_vocabulary", "token_ids_logprob"),
        (
            b'"input_ids":[[1],[2]],"token_ids_logprob":[null,[10]]',
            "token_id_outside_vocabulary",
            "token_ids_logprob",
        ),
        (b'"input_ids":[1],"top_logprobs_num":11', "top_logprobs_over_vocabulary", "top_logprobs_num"),
        (
            b'"input_ids":[[1],[2]],"top_logprobs_num":[0,11]',
            "top_logprobs_over_vocabulary",
            "top_logprobs_num",
        ),
    ],
)
def test_what_the_vocabulary_does_not_have_is_refused(members: bytes, rule: str, param: str) -> None:
    body = b"{%b}" % members
    with pytest.raises(InvalidRequest) as caught:
        TEN.parse(body, ())
    assert (caught.value.status, caught.value.rule, caught.value.param) == (400, rule, param)
    assert FORMAT.parse(body, ()).body == body


@pytest.mark.parametrize("ids", [b"[-1]", b"[[1],[-1]]"])
def test_negative_id_keeps_its_own_rule(ids: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        TEN.parse(b'{"input_ids":%b}' % ids, ())
    assert caught.value.rule == "negative_token_id"


@pytest.mark.parametrize(
    "members",
    [
        b'"input_ids":[0,9],"token_ids_logprob":[0,9],"top_logprobs_num":10',
        b'"input_ids":[[0],[9]],"token_ids_logprob":null,"top_logprobs_num":[10,null]',
        b'"text":"one 10 and 11"',
        b'"input_ids":null,"text":"x"',
        b'"input_ids":[]',
        b'"input_ids":["10"]',
        b'"input_ids":[true,10]',
        b'"input_ids":{"a":10}',
        b'"input_ids":' + b"[" * 500 + b"1" + b"]" * 500,
    ],
)
def test_valid_values_and_those_the_engine_refuses_are_forwarded(members: bytes) -> None:
    body = b"{%b}" % members
    assert TEN.parse(body, ()).body == body
