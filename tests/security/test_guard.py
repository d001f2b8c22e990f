"""Which key opens what, and where a key goes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from gateway.errors import Unauthorized
from gateway.formats.contract import Headers
from gateway.security.guard import AccessScope, Guard, challenge
from gateway.security.keys import Keys

REST = [(b"host", b"g"), (b"x-api-key", b"api")]


@dataclass
class Source:
    keys: Keys


API, ADMIN = Source(Keys([b"api", b"api2"])), Source(Keys([b"admin"]))


def _with(token: str | None) -> Headers:
    return REST if token is None else [*REST, (b"authorization", f"Bearer {token}".encode())]


def _opened(guard: Guard, token: str | None) -> str:
    return "".join(scope[0] for scope in AccessScope if guard.admits(scope, _with(token)))


@pytest.mark.parametrize(
    ("guard", "by"),
    [
        (Guard(), {None: "oimc", "api": "oimc", "admin": "oimc", "else": "oimc"}),
        (Guard(API), {None: "o", "api": "oimc", "api2": "oimc", "admin": "o", "else": "o"}),
        (Guard(None, ADMIN), {None: "oi", "api": "oi", "admin": "oimc", "else": "oi"}),
        (Guard(API, ADMIN), {None: "o", "api": "oim", "api2": "oim", "admin": "oimc", "else": "o"}),
        (Guard(API, ADMIN, metrics_open=True), {None: "om", "api": "oim", "admin": "oimc", "else": "om"}),
    ],
    ids=["none", "api", "admin", "both", "metrics-open"],
)
def test_realms_that_a_key_opens(guard: Guard, by: dict[str | None, str]) -> None:
    """o(pen), i(nference), m(etrics), c(ontrol)."""
    assert {token: _opened(guard, token) for token in by} == by


def test_refusal_is_counted_and_says_what_to_do_without_the_key() -> None:
    refused: list[AccessScope] = []
    guard = Guard(API, ADMIN, refused=refused.append)
    for headers, said in ((_with(None), "a key is needed"), (_with("wrong"), "not valid here")):
        with pytest.raises(Unauthorized, match=said) as failure:
            guard.admit(AccessScope.INFERENCE, headers)
        assert failure.value.status == 401 and "wrong" not in failure.value.message
        assert challenge(failure.value) == [(b"www-authenticate", b"Bearer")]
    with pytest.raises(Unauthorized):
        guard.admit(AccessScope.CONTROL, _with("api"))
    assert refused == [AccessScope.INFERENCE, AccessScope.INFERENCE, AccessScope.CONTROL]
    assert not guard.admits(AccessScope.CONTROL, REST) and len(refused) == 3


def test_key_of_the_gateway_goes_no_further() -> None:
    """Nor any line beside it; the client's own goes on where the gateway knows it not."""
    twice = [*_with("api"), (b"authorization", b"Bearer other")]
    assert Guard(API).admit(AccessScope.INFERENCE, twice) == REST
    assert Guard(None, ADMIN).admit(AccessScope.INFERENCE, _with("admin")) == REST
    assert Guard(None, ADMIN).admit(AccessScope.INFERENCE, _with("engine")) == _with("engine")
    assert Guard().admit(AccessScope.INFERENCE, _with("engine")) == _with("engine")


def test_second_line_opens_nothing() -> None:
    lines = [(b"authorization", b"Bearer wrong"), (b"authorization", b"Bearer api")]
    assert not Guard(API).admits(AccessScope.INFERENCE, lines)


def test_keys_that_changed_count_at_once() -> None:
    source = Source(Keys([b"old"]))
    guard = Guard(source)
    source.keys = Keys([b"new"])
    assert not guard.admits(AccessScope.INFERENCE, _with("old")) and guard.admits(
        AccessScope.INFERENCE, _with("new")
    )
