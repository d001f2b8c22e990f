"""Sets of keys, and the bearer token of a request."""

from __future__ import annotations

import hmac

import pytest

from gateway.security.keys import Keys, bearer


def test_each_key_is_known_and_no_other() -> None:
    keys = Keys([b"one", b"two", b"two"])
    assert [keys.has(key) for key in (b"one", b"two", b"", b"on", b"onee", b"ONE")] == [True, True] + [
        False
    ] * 4
    assert len(keys) == 2


def test_all_keys_are_compared_whichever_matches(monkeypatch: pytest.MonkeyPatch) -> None:
    """All comparisons are of the same length, so the time reveals nothing."""
    compared: list[tuple[int, int]] = []
    compare = hmac.compare_digest

    def noting(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return compare(one, other)

    monkeypatch.setattr(hmac, "compare_digest", noting)
    keys = Keys([b"first", b"second" * 9, b"third"])
    for key in (b"first", b"third", b"none of them"):
        compared.clear()
        keys.has(key)
        assert compared == [(32, 32)] * 3


def test_repr_contains_no_key() -> None:
    assert "secret" not in repr(Keys([b"secret"]))
    assert not hasattr(Keys([b"secret"]), "__dict__")


@pytest.mark.parametrize(
    ("value", "token"),
    [
        (b"Bearer abc", b"abc"),
        (b"bearer abc", b"abc"),
        (b"BEARER   abc  ", b"abc"),
        (b"Bearer ", None),
        (b"Bearer", None),
        (b"Bearerabc", None),
        (b"Basic abc", None),
        (b"abc", None),
        (b"", None),
    ],
)
def test_token_of_a_request(value: bytes, token: bytes | None) -> None:
    assert bearer([(b"host", b"g"), (b"authorization", value)]) == token


def test_request_without_the_header_has_no_token() -> None:
    assert bearer([(b"x-api-key", b"abc")]) is None
