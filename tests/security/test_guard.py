"""Which key gives access to which routes, and that keys are removed from requests."""

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
def test_scopes_that_a_key_gives_access_to(guard: Guard, by: dict[str | None, str]) -> None:
    """o(pen), i(nference), m(etrics), c(ontrol)."""
    assert {token: _opened(guard, token) for token in by} == by


def test_refusal_is_counted_and_its_message_contains_no_key() -> None:
    refused: list[AccessScope] = []
    guard = Guard(API, ADMIN, refused=refused.append)
    for headers, problem in ((_with(None), "a key is needed"), (_with("wrong"), "not valid here")):
        with pytest.raises(Unauthorized, match=problem) as failure:
            guard.admit(AccessScope.INFERENCE, headers)
        assert failure.value.status == 401 and "wrong" not in failure.value.message
        assert challenge(failure.value) == [(b"www-authenticate", b"Bearer")]
    with pytest.raises(Unauthorized):
        guard.admit(AccessScope.CONTROL, _with("api"))
    assert refused == [AccessScope.INFERENCE, AccessScope.INFERENCE, AccessScope.CONTROL]
    assert not guard.admits(AccessScope.CONTROL, REST) and len(refused) == 3


def test_key_of_the_gateway_is_removed_with_all_authorization_lines() -> None:
    """A key that the gateway does not know is left for the worker."""
    twice = [*_with("api"), (b"authorization", b"Bearer other")]
    assert Guard(API).admit(AccessScope.INFERENCE, twice) == REST
    assert Guard(None, ADMIN).admit(AccessScope.INFERENCE, _with("admin")) == REST
    assert Guard(None, ADMIN).admit(AccessScope.INFERENCE, _with("engine")) == _with("engine")
    assert Guard().admit(AccessScope.INFERENCE, _with("engine")) == _with("engine")


def test_only_the_first_authorization_line_counts() -> None:
    lines = [(b"authorization", b"Bearer wrong"), (b"authorization", b"Bearer api")]
    assert not Guard(API).admits(AccessScope.INFERENCE, lines)


def test_changed_keys_are_valid_at_once() -> None:
    source = Source(Keys([b"old"]))
    guard = Guard(source)
    source.keys = Keys([b"new"])
    assert not guard.admits(AccessScope.INFERENCE, _with("old")) and guard.admits(
        AccessScope.INFERENCE, _with("new")
    )
