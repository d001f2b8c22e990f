"""Which key gives access to which routes, and that keys are removed from requests."""

from __future__ import annotations

import hmac
from dataclasses import dataclass

import pytest

from gateway.errors import Unauthorized
from gateway.formats.contract import Headers
from gateway.security.guard import AccessScope, Guard, challenge
from gateway.security.keys import Keys, bearer, names_with_keys
from gateway.security.scopes import ScopeTable

REST = [(b"host", b"g"), (b"x-api-key", b"engine")]


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
    for headers, problem in (([], "a key is needed"), (_with("wrong"), "not valid here")):
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


@pytest.mark.parametrize("name", [b"authorization", b"x-api-key", b"api-key"])
def test_only_the_first_line_of_a_header_counts(name: bytes) -> None:
    scheme = b"Bearer " if name == b"authorization" else b""
    lines = [(name, scheme + b"wrong"), (name, scheme + b"api")]
    assert not Guard(API).admits(AccessScope.INFERENCE, lines)
    assert Guard(API).admits(AccessScope.INFERENCE, lines[::-1])


@pytest.mark.parametrize("name", [b"x-api-key", b"api-key"])
def test_key_may_be_in_the_header_of_another_api_beside_a_key_of_the_engine(name: bytes) -> None:
    lines = [(b"authorization", b"Bearer engine"), (name, b"api")]
    assert Guard(API, ADMIN).admit(AccessScope.INFERENCE, lines) == lines[:1]
    with pytest.raises(Unauthorized, match="not valid here"):
        Guard(API, ADMIN).admit(AccessScope.CONTROL, lines)
    assert not Guard(API).admits(AccessScope.INFERENCE, [(name, b"Bearer api")])
    assert not Guard(API).admits(AccessScope.INFERENCE, [(b"x-goog-api-key", b"api"), (name, b"")])


@pytest.mark.parametrize("value", [b"api", b"api2", b"admin", b"Bearer api", b"bearer   admin"])
@pytest.mark.parametrize("name", [b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key", b"cookie"])
def test_no_header_with_a_key_of_the_gateway_is_left_on_any_route(name: bytes, value: bytes) -> None:
    guard, lines = Guard(API, ADMIN), [*REST[:1], (name, b"engine"), (name, value)]
    allowed = [(b"authorization", b"Bearer api")] if name != b"authorization" else []
    assert guard.admit(AccessScope.OPEN, [*lines, *allowed]) == REST[:1]
    kept = [*REST, (name, b"ap"), (name, b"Bearer apix"), (name, b"Basic api")]
    assert guard.admit(AccessScope.OPEN, kept) == kept


def test_changed_keys_are_valid_at_once() -> None:
    source = Source(Keys([b"old"]))
    guard = Guard(source)
    source.keys = Keys([b"new"])
    assert [guard.admits(AccessScope.INFERENCE, _with(key)) for key in ("old", "new")] == [False, True]


# -- the scope of a path

SCOPES = ScopeTable(
    open_paths=("/", "/live"), inference=("/abort",), inference_trees=("/models",), metrics=("/m",)
)


@pytest.mark.parametrize(
    ("scope", "paths"),
    [
        (AccessScope.OPEN, ("/", "/live")),
        (AccessScope.INFERENCE, ("/abort", "/models", "/models/a/b")),
        (AccessScope.METRICS, ("/m",)),
        (AccessScope.CONTROL, ("/live/", "/live/x", "//live", "/LIVE", "", "/abort/x", "/modelsx", "/else")),
    ],
)
def test_scope_of_a_path(scope: AccessScope, paths: tuple[str, ...]) -> None:
    """Exactly the paths that are named; all else is for the admin."""
    assert {path: SCOPES.of(path) for path in paths} == dict.fromkeys(paths, scope)


# -- sets of keys, and the bearer token of a request


def test_each_key_is_known_and_no_other() -> None:
    """The set of them shows none."""
    keys = Keys([b"one", b"two", b"two"])
    assert [keys.has(key) for key in (b"one", b"two")] == [True] * 2
    assert not any(map(keys.has, (b"", b"on", b"onee", b"ONE")))
    assert len(keys) == 2
    assert "one" not in repr(keys) and not hasattr(keys, "__dict__")


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


@pytest.mark.parametrize(
    ("value", "token"),
    [
        *((value, b"abc") for value in (b"Bearer abc", b"bearer abc", b"BEARER   abc  ")),
        *((value, None) for value in (b"Bearer ", b"Bearer", b"Bearerabc", b"Basic abc", b"abc", b"")),
    ],
)
def test_token_of_a_request(value: bytes, token: bytes | None) -> None:
    assert bearer([(b"host", b"g"), (b"authorization", value)]) == token
    assert bearer([(b"x-api-key", value)]) is None


def test_values_of_another_length_than_a_key_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request has many headers, and there may be a thousand keys."""
    monkeypatch.setattr(Keys, "has", lambda *_: pytest.fail("compared"))
    lines = [(b"host", b"gateway"), (b"user-agent", b"x" * 40), (b"x-empty", b"")]
    assert not names_with_keys(lines, [API.keys, ADMIN.keys])
