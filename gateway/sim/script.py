"""Scripts: how a single request is to be answered.

Owns: the kinds of misbehaviour and pace, and the ``X-Sim-*`` headers. Must never enter: a dialect, sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from gateway.sim.config import CUTS, SimConfig

T = TypeVar("T")


class BadScript(ValueError):
    """An invalid ``X-Sim-*`` header; the message names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Generate as the engine does, at this pace. Fields as in SimConfig; None means as configured."""

    prefill_base: float | None = None
    prefill_per_token: float | None = None
    token_delay: float | None = None
    jitter: float | None = None
    start_delay: float | None = None
    stall_after: int | None = None
    cut_after: int | None = None
    cut: str | None = None
    tokens: int | None = None
    fail_after: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """Answer with exactly this. ``headers`` are added to date, server, content-length and content-type."""

    status: int = 200
    body: bytes = b"{}"
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()
    delay: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """Send a head with a content length of ``length`` bytes (default: twice the body) and only ``body``, then
    break the connection.
    """

    body: bytes
    status: int = 200
    content_type: str = "application/json"
    length: int | None = None
    reset: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Raw:
    """Write these bytes in place of an HTTP response, then close the connection or leave it open."""

    data: bytes
    close: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Drop:
    """Break the connection without an answer: when the headers are read (``early``) or when the request is
    complete.
    """

    early: bool = False
    reset: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Never answer. ``unread``: the body is not read either."""

    unread: bool = False


Script = Pace | Reply | Half | Raw | Drop | Silence


@dataclass(frozen=True, slots=True)
class Timing:
    """The pace of one request, with every default filled in."""

    prefill_base: float
    prefill_per_token: float
    token_delay: float
    jitter: float
    start_delay: float
    stall_after: int | None
    cut_after: int | None
    cut: str
    tokens: int | None
    fail_after: int | None

    @classmethod
    def of(cls, config: SimConfig) -> Timing:
        return cls(*(getattr(config, name) for name in _PACE))

    def at(self, pace: Pace) -> Timing:
        """Return this timing with the values that ``pace`` sets."""
        present = {name: value for name in _PACE if (value := getattr(pace, name)) is not None}
        return replace(self, **present)


_PACE = tuple(item.name for item in fields(Pace))


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1e6:
        raise ValueError(text)
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError(text)
    return value


def _cut(text: str) -> str:
    if text not in CUTS:
        raise ValueError(text)
    return text


_PACE_HEADERS: dict[bytes, tuple[str, Callable[[str], Any]]] = {
    b"x-sim-prefill-base": ("prefill_base", _seconds),
    b"x-sim-prefill-per-token": ("prefill_per_token", _seconds),
    b"x-sim-token-delay": ("token_delay", _seconds),
    b"x-sim-jitter": ("jitter", _seconds),
    b"x-sim-start-delay": ("start_delay", _seconds),
    b"x-sim-stall-after": ("stall_after", _count),
    b"x-sim-cut-after": ("cut_after", _count),
    b"x-sim-cut": ("cut", _cut),
    b"x-sim-tokens": ("tokens", _count),
    b"x-sim-fail-after": ("fail_after", _count),
}
_DROPS: dict[str, Script] = {
    "early": Drop(early=True),
    "late": Drop(),
    "early-fin": Drop(early=True, reset=False),
    "late-fin": Drop(reset=False),
    "never": Silence(),
    "unread": Silence(unread=True),
}


def from_headers(headers: list[tuple[bytes, bytes]]) -> Script | None:
    """Return the script that the ``X-Sim-*`` headers of a request describe, None without any. Raises
    BadScript.
    """
    own = {
        name.lower(): value.decode("latin-1").strip()
        for name, value in headers
        if name[:6] in (b"x-sim-", b"X-Sim-", b"X-SIM-")
    }
    if not own:
        return None
    if drop := own.pop(b"x-sim-drop", None):
        return _parse(b"x-sim-drop", drop, _DROPS.__getitem__)
    if status := own.pop(b"x-sim-status", None):
        body = own.pop(b"x-sim-body", "{}").encode("latin-1")
        return Reply(status=_parse(b"x-sim-status", status, _count), body=body)
    pace: dict[str, Any] = {}
    for name, text in own.items():
        if name not in _PACE_HEADERS:
            raise BadScript(f"{name.decode('latin-1')} is not a header of the simulated engine")
        target, convert = _PACE_HEADERS[name]
        pace[target] = _parse(name, text, convert)
    return Pace(**pace)


def _parse(name: bytes, text: str, convert: Callable[[str], T]) -> T:
    try:
        return convert(text)
    except (ValueError, KeyError) as error:
        raise BadScript(f"{name.decode()}: {text!r} is not a value it can have") from error
