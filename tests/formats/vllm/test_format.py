"""The format: its name, its settings, its registration."""

from __future__ import annotations

import pytest

from gateway.errors import InvalidRequest
from gateway.formats.vllm import FORMAT, VllmFormat


def test_settings_make_a_format_of_their_own() -> None:
    passing = FORMAT.configured({"passthrough_engine_errors": "true"})
    assert passing == VllmFormat(passthrough_engine_errors=True)
    assert passing.configured({}) == passing
    assert passing.configured({"vocab_size": "9"}) == VllmFormat(passthrough_engine_errors=True, vocab_size=9)
    assert passing.configured({"passthrough_engine_errors": "false"}) == FORMAT == VllmFormat()


@pytest.mark.parametrize(
    ("name", "value"), [("stream_mode", "engine"), ("passthrough_engine_errors", "yes"), ("vocab_size", "0")]
)
def test_setting_that_makes_no_sense_is_named(name: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"^{name}: "):
        FORMAT.configured({name: value})


@pytest.mark.parametrize("ids", [b"[1,10]", b"[11,1]", b'["10"]', b"[1,1e1]", b"[99999999999999999999]"])
def test_id_outside_of_a_vocabulary_is_refused_where_its_size_is_known(ids: bytes) -> None:
    """In every spelling of a number that the engine accepts; without the size the engine judges it."""
    body = b'{"token_ids":%b,"sampling_params":{}}' % ids
    with pytest.raises(InvalidRequest) as caught:
        FORMAT.configured({"vocab_size": "10"}).parse(body, ())
    assert (caught.value.rule, caught.value.param) == ("token_id_outside_vocabulary", "token_ids")
    assert FORMAT.parse(body, ())


@pytest.mark.parametrize("ids", [b"[0,9]", b"[]", b"null", b'["x",10]', b"7"])
def test_ids_in_the_vocabulary_and_other_values_are_left_to_the_engine(ids: bytes) -> None:
    body = b'{"token_ids":%b,"sampling_params":{}}' % ids
    assert FORMAT.configured({"vocab_size": "10"}).parse(body, ()).body == body
