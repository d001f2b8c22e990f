"""Options of formats: their values and errors, and ids outside of a vocabulary whose size is configured."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.errors import InvalidRequest
from gateway.formats.contract import ReplyHead
from gateway.formats.options import Kind, count, flag, one_of, read
from gateway.testing.drive import drive
from tests.formats.dialects import BOTH, DIALECTS, Dialect
from tests.formats.support import PRIVATE, View

KINDS: dict[str, Kind] = {"quick": flag, "size": count, "way": one_of("up", "down")}
SGLANG, VLLM = (dialect.format for dialect in DIALECTS.values())
TEN = {"vocab_size": "10"}


def test_options_are_read_by_their_kinds() -> None:
    given = {"way": "down", "size": "9", "quick": "false"}
    assert read(given, KINDS) == {"way": "down", "size": 9, "quick": False}
    assert read({}, KINDS) == {}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("depth", "1", "depth: this format has no such setting"),
        ("quick", "yes", "quick: must be true or false, not 'yes'"),
        ("size", "0", "size: must be a whole number above 0, not '0'"),
        ("size", "9" * 19, "size: must be a whole number above 0, not '9999999999999999999'"),
        ("way", "Up", "way: 'Up' is none of up, down"),
    ],
)
def test_bad_option_is_named_with_what_it_may_be(name: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}$"):
        read({name: text}, KINDS)


@BOTH
@pytest.mark.parametrize(
    ("name", "value"), [("stream_mode", "fast"), ("passthrough_engine_errors", "yes"), ("vocab_size", "0")]
)
def test_bad_setting_is_refused_by_name(dialect: Dialect, name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: "):
        dialect.format.configured({name: value})


@BOTH
def test_settings_add_up_and_do_not_change_the_original_format(dialect: Dialect) -> None:
    both = dialect.format.configured(TEN).configured({"passthrough_engine_errors": "true"}).configured({})
    body = b'{"input_ids":[10],"token_ids":[10],"sampling_params":{}}'
    with pytest.raises(InvalidRequest):
        both.parse(body, ())
    request, failed = dialect.format.parse(body, ()), b"at /usr/lib/x.py"
    for format, shown in ((both, failed), (dialect.format, b"at <path>")):
        reader = format.reader(request, View(), PRIVATE, ReplyHead(500, []))
        assert drive(reader, [failed]).out == shown


IDS, LOGPROB, TOP = "input_ids", "token_ids_logprob", "top_logprobs_num"


@pytest.mark.parametrize(
    ("format", "members", "param"),
    [
        (SGLANG, b'"input_ids":[1,10]', IDS),
        (SGLANG, b'"input_ids":[99999999999999999999]', IDS),
        (SGLANG, b'"input_ids":[[1],[2,10]]', IDS),
        (SGLANG, b'"input_ids":[1],"input_ids":[10]', IDS),
        (SGLANG, b'"input_ids":[1],"token_ids_logprob":[9,10]', LOGPROB),
        (SGLANG, b'"input_ids":[[1],[2]],"token_ids_logprob":[null,[10]]', LOGPROB),
        (SGLANG, b'"input_ids":[1],"top_logprobs_num":11', TOP),
        (SGLANG, b'"input_ids":[[1],[2]],"top_logprobs_num":[0,11]', TOP),
        # In every spelling of a number that the engine accepts.
        *(
            (VLLM, b'"token_ids":' + ids, "token_ids")
            for ids in (b"[1,10]", b"[11,1]", b'["10"]', b"[1,1e1]", b"[99999999999999999999]")
        ),
    ],
)
def test_what_the_vocabulary_does_not_have_is_refused(format: Any, members: bytes, param: str) -> None:
    """Where its size is known; without it the engine judges."""
    body = b'{%b,"sampling_params":{}}' % members
    with pytest.raises(InvalidRequest) as caught:
        format.configured(TEN).parse(body, ())
    rule = "top_logprobs_over_vocabulary" if param == TOP else "token_id_outside_vocabulary"
    assert (caught.value.status, caught.value.rule, caught.value.param) == (400, rule, param)
    assert format.parse(body, ()).body == body


@pytest.mark.parametrize("ids", [b"[-1]", b"[[1],[-1]]"])
def test_negative_id_keeps_its_own_rule(ids: bytes) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SGLANG.configured(TEN).parse(b'{"input_ids":%b}' % ids, ())
    assert caught.value.rule == "negative_token_id"


@pytest.mark.parametrize(
    ("format", "members"),
    [
        (SGLANG, b'"input_ids":[0,9],"token_ids_logprob":[0,9],"top_logprobs_num":10'),
        (SGLANG, b'"input_ids":[[0],[9]],"token_ids_logprob":null,"top_logprobs_num":[10,null]'),
        (SGLANG, b'"text":"one 10 and 11"'),
        (SGLANG, b'"input_ids":null,"text":"x"'),
        (SGLANG, b'"input_ids":[]'),
        (SGLANG, b'"input_ids":["10"]'),
        (SGLANG, b'"input_ids":[true,10]'),
        (SGLANG, b'"input_ids":{"a":10}'),
        (SGLANG, b'"input_ids":' + b"[" * 500 + b"1" + b"]" * 500),
        *((VLLM, b'"token_ids":' + ids) for ids in (b"[0,9]", b"[]", b"null", b'["x",10]', b"7")),
    ],
)
def test_valid_values_and_those_the_engine_refuses_are_forwarded(format: Any, members: bytes) -> None:
    body = b'{%b,"sampling_params":{}}' % members
    assert format.configured(TEN).parse(body, ()).body == body
