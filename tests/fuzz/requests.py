"""The body of a request in each format: parsed at once and in steps, and forwarded under a private id."""

from __future__ import annotations

import json
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gateway.errors import InvalidRequest
from gateway.formats.base import AnyFormat
from gateway.formats.contract import Ids, UpstreamRequest
from gateway.formats.optional import Stepwise
from gateway.formats.registry import load_formats
from gateway.formats.worker_contract import WorkerInfo
from gateway.testing.drive import claim
from gateway.testing.model import ModelWorker
from tests.fuzz.target import Target
from tests.fuzz.wire import judge_headers

PRIVATE = "0123456789abcdef" * 2


@dataclass(frozen=True)
class Parsed:
    """The result for one body. ``bodies`` are forwarded under the client's own id and under a private one."""

    refusal: str | None
    ids: tuple[str, ...] = ()
    bodies: tuple[bytes, bytes] = (b"", b"")


def read(format: AnyFormat, pieces: Sequence[bytes]) -> Parsed:
    body = b"".join(pieces)
    at_once = _parsed(format, body)
    if isinstance(format, Stepwise):
        in_steps = _parsed(format, body, in_steps=True)
        if (in_steps.refusal is None) != (at_once.refusal is None) and not _is_text(body):
            return (
                at_once  # only one way of reading met the bytes that are no text; every worker refuses them
            )
        assert (in_steps.refusal is None) == (at_once.refusal is None), (in_steps, at_once)
        assert in_steps.ids == at_once.ids, "read at once and in steps"
        assert in_steps.bodies == at_once.bodies, "sent on after it was read at once and in steps"
    return at_once


def _is_text(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _parsed(format: Any, body: bytes, *, in_steps: bool = False) -> Parsed:
    try:
        request = _last(format.parse_in_steps(body, [])) if in_steps else format.parse(body, [])
    except InvalidRequest as error:
        return Parsed(error.message)
    return _sent(format, request)


def _last(steps: Generator[None, None, Any]) -> Any:
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return end.value


def _sent(format: AnyFormat, request: Any) -> Parsed:
    projection = format.project(request)
    worker = ModelWorker(WorkerInfo("w", format.capability, usable=True, models=("m",)))
    named = projection.ids
    public = named or ("a",)
    private = tuple(f"{number:08x}{PRIVATE[8:]}" for number in range(len(public)))
    claimed = claim(named, projection.ids_usable)
    assert len(claimed.public) == len(claimed.dispatch)
    own, other = (format.upstream(request, worker, Ids(public, ids)) for ids in (public, private))
    for call in (own, *format.abort(worker, request, Ids(public, private))):
        _judge_head(call)
    return Parsed(None, named, (_bytes(own), _bytes(other)))


def _bytes(request: UpstreamRequest) -> bytes:
    return b"".join((request.body, *map(bytes, request.rest)))


def _judge_head(request: UpstreamRequest) -> None:
    assert request.target.startswith(b"/") and not set(b"\r\n\0 ").intersection(request.target)
    judge_headers(request.headers)


def judge(member: str, data: bytes, parsed: Parsed) -> None:
    """``member`` holds the id; none: a header does, and the body needs no change."""
    if parsed.refusal is not None:
        assert parsed.refusal
        return
    own, other = parsed.bodies
    if not member or (parsed.ids and all(parsed.ids)):
        assert own == data, "a body that needs no change"
    if not member:
        assert other == data
        return
    before, after = _members(data), _members(other)
    if before is None or after is None:
        return  # of another encoding, or another JSON than json's
    assert [pair for pair in after if pair[0] != member] == [pair for pair in before if pair[0] != member]
    for name, value in after:
        assert name != member or PRIVATE[8:] in str(value), f"an id of the client's is left: {value!r}"


def _members(body: bytes) -> list[tuple[str, Any]] | None:
    """The members of an object in their order, repeated ones too, numbers as they are spelled."""
    try:
        found = json.loads(body, object_pairs_hook=list, parse_float=str, parse_int=str)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) else None


def targets() -> list[Target[Any]]:
    members = {"sglang": "rid", "vllm": ""}
    formats = load_formats()
    return [
        Target(f"request-{name}", partial(read, formats[name]), partial(judge, member))
        for name, member in members.items()
    ]
