"""Where records lie in etcd."""

from __future__ import annotations

from base64 import b64encode

import pytest

from gateway.stores.etcd.keys import Keys
from tests.stores.contract import ONE, TWO


def test_range_holds_the_keys_of_one_deployment_and_no_other() -> None:
    keys = Keys("/a/")
    assert keys.all == {"key": _base64("/a/lifted/"), "range_end": _base64("/a/workers0")}
    assert keys.of("http://x:1") == _base64("/a/workers/http://x:1")
    assert Keys("/a").all == keys.all


def test_value_that_is_not_the_keys_record_is_refused() -> None:
    keys = Keys("/a")
    key, _ = keys.decode({"key": keys.of(ONE.url)})
    for value in (b"", b"{", b"\xff", b"[]", TWO.to_json().encode()):
        with pytest.raises(ValueError):
            keys.record(key, value)


def test_mark_and_url_are_read_as_they_were_written() -> None:
    """Whatever is in them; a record's key is no mark's."""
    keys = Keys("/a")
    for reason in ("held", "paused:memory:a/b%2F c", "waived:ünï"):
        for there in (True, False):
            key, _ = keys.decode({"key": keys.of_cordon((ONE.url, reason), present=there)})
            assert keys.parse_cordon(key) == ((ONE.url, reason), there)
    assert keys.parse_cordon(keys.decode({"key": keys.of(ONE.url)})[0]) is None


def _base64(text: str) -> str:
    return b64encode(text.encode()).decode()
