"""The reply of a worker in the readers of each format: relayed and joined, streamed and unary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from gateway.errors import UpstreamMalformed
from gateway.formats.base import AnyFormat
from gateway.formats.contract import Headers, Ids, ReplyFacts, ReplyHead
from gateway.formats.registry import load_formats
from gateway.formats.relayed import RelayedFormat
from gateway.formats.worker_contract import WorkerInfo
from gateway.testing.drive import Outcome, drive
from gateway.testing.model import ModelWorker
from tests.fuzz.target import Target

EVENTS: Headers = [(b"content-type", b"text/event-stream")]
JSON: Headers = [(b"content-type", b"application/json")]
#: A dispatch id, and a public id that is hard to quote.
PRIVATE = "0123456789abcdef" * 2
PUBLIC = 'job-"1"\\\u00e9'


@dataclass(frozen=True)
class Dialect:
    """A format with a ``stream`` and a ``unary`` request, for two samples where the format allows it.

    ``verbatim`` is the same format configured to change nothing of a reply but ids.
    """

    format: AnyFormat
    stream: bytes
    unary: bytes
    verbatim: AnyFormat


def _dialects() -> dict[str, Dialect]:
    formats = load_formats()
    bodies = {
        "sglang": b'{"input_ids":[[1],[2]],"rid":["a","b"],"sampling_params":{},"stream":%b}',
        "vllm": b'{"token_ids":[1],"request_id":"a","sampling_params":{"n":2},"stream":%b}',
    }
    keep = {"passthrough_engine_errors": "true"}
    found = {
        name: Dialect(formats[name], body % b"true", body % b"false", formats[name].configured(keep))
        for name, body in bodies.items()
    }
    path, capability, body = (
        "/v1/chat/completions",
        "vllm_generate",
        b'{"model":"m","messages":[],"stream":%b}',
    )
    relayed = [RelayedFormat(path, capability, passthrough_engine_errors=keep) for keep in (False, True)]
    return {**found, "relayed": Dialect(relayed[0], body % b"true", body % b"false", relayed[1])}


def read(dialect: Dialect, pieces: Sequence[bytes]) -> dict[str, Outcome]:
    """Return the output of each reader, under the client's id and under a private one."""
    outcomes: dict[str, Outcome] = {}
    for kind, body, headers in (("stream", dialect.stream, EVENTS), ("unary", dialect.unary, JSON)):
        request = dialect.format.parse(body, [])
        named = dialect.format.project(request).ids or ("a",)
        same = Ids(named, named)
        other = Ids(
            tuple(f"{PUBLIC}{number}" for number in range(len(named))),
            tuple(f"{number}{PRIVATE[1:]}" for number in range(len(named))),
        )
        for maker, format in (
            ("reader", dialect.format),
            ("join", dialect.format),
            ("verbatim", dialect.verbatim),
        ):
            make = getattr(format, "reader" if maker == "verbatim" else maker, None)
            if make is None:
                continue  # not every format joins streams
            head = ReplyHead(200, headers)
            worker = ModelWorker(WorkerInfo("w", format.capability, usable=True, models=("m",)))
            outcomes[f"{kind} {maker}"] = drive(make(request, worker, same, head), pieces)
            if maker != "verbatim":
                outcomes[f"{kind} {maker}, private id"] = drive(make(request, worker, other, head), pieces)
    return outcomes


def judge(dialect: Dialect, data: bytes, outcomes: dict[str, Outcome]) -> None:
    for name, each in outcomes.items():
        _judge_facts(each.facts, complete=each.failure is None)
        if each.failure is UpstreamMalformed and "unary" not in name:
            assert not each.facts.ending, "an ending of an incomplete stream"
    relayed = outcomes["stream verbatim"]
    if b"routing_data" not in data:
        assert _is_part(relayed, data), f"bytes that the worker did not send: {relayed.out!r}"
    unary = outcomes["unary verbatim"]
    if unary.failure is None:
        assert unary.out == data
    assert outcomes["stream reader"].failure == relayed.failure


#: How the events begin that the gateway adds to a broken stream, by API.
_ERROR_EVENTS = (b'data: {"error"', b"event: error\n")


def _is_part(outcome: Outcome, data: bytes) -> bool:
    """Return True if the output is made of parts of ``data`` in order, except for the event of a failure."""
    out = outcome.out
    if outcome.failure is not None:
        ends = [out.rindex(mark) for mark in _ERROR_EVENTS if mark in out]
        out = out[: min(ends, default=len(out))]
    at = 0
    while out:
        size = next((size for size in range(len(out), 0, -1) if data.startswith(out[:size], at)), 0)
        if size:
            out = out[size:]
            at += size
        else:
            at += 1
            if at > len(data):
                return False
    return True


def _judge_facts(facts: ReplyFacts, *, complete: bool) -> None:
    counts = (facts.tokens, facts.prompt_tokens or 0, facts.cached_tokens or 0)
    assert all(type(count) is int for count in counts), counts
    assert facts.tokens >= 0
    assert all(isinstance(reason, str) for reason in facts.finish_reasons)
    assert facts.error_status is None or 400 <= facts.error_status <= 599
    assert not complete or facts.ending is not None


def targets() -> list[Target[Any]]:
    return [
        Target(f"reply-{name}", partial(read, dialect), partial(judge, dialect))
        for name, dialect in _dialects().items()
    ]
