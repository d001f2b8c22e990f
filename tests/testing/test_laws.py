"""Each law can fail: for each there is a format that breaks it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import Phase, settings

from gateway.errors import UpstreamIncomplete
from gateway.formats.base import AnyFormat
from gateway.formats.contract import Headers, Ids, Reader, ReplyHead, UpstreamRequest, WorkerView
from gateway.testing import laws
from gateway.testing.contract import FormatContract
from gateway.testing.laws import LAWS, Law
from tests.plugins.echo.gateway_echo import EchoFormat, EchoRequest
from tests.testing.support import JoiningEcho, JoiningEchoModel, Rewired


class Chokes(JoiningEcho):
    """Raises KeyError for a body without text."""

    def parse(self, body: bytes, headers: Headers) -> EchoRequest:
        json.loads(body)["text"]
        return super().parse(body, headers)


class KeepsTheClientsTag(JoiningEcho):
    """Two exchanges may then have the same id at the server."""

    def upstream(self, request: EchoRequest, worker: WorkerView, ids: Ids) -> UpstreamRequest:
        return super().upstream(request, worker, Ids(ids.public, ids.public))


class Respells(JoiningEcho):
    """Encodes the body again."""

    def upstream(self, request: EchoRequest, worker: WorkerView, ids: Ids) -> UpstreamRequest:
        sent = super().upstream(request, worker, ids)
        body = json.dumps(json.loads(sent.body), separators=(",", ":")).encode()
        return UpstreamRequest(sent.method, sent.target, sent.headers, body)


class ShowsThePrivateTag(JoiningEcho):
    """The client gets the private id."""

    def reader(self, request: EchoRequest, worker: WorkerView, ids: Ids, head: ReplyHead) -> Reader:
        return super().reader(request, worker, Ids(ids.dispatch, ids.dispatch), head)


class Holds(JoiningEcho):
    """Buffers lines until the end."""

    def reader(self, request: EchoRequest, worker: WorkerView, ids: Ids, head: ReplyHead) -> Reader:
        held: list[bytes] = []
        reader = Rewired(super().reader(request, worker, ids, head))

        def feed(data: bytes) -> bytes:
            held.append(reader.inner.feed(data))
            return b""

        reader.feed = feed  # type: ignore[method-assign]
        reader.finish = lambda: b"".join((*held, reader.inner.finish()))  # type: ignore[method-assign]
        return reader


class TakesReadsForLines(JoiningEcho):
    """Drops the incomplete line at the end of a read."""

    def reader(self, request: EchoRequest, worker: WorkerView, ids: Ids, head: ReplyHead) -> Reader:
        reader = Rewired(super().reader(request, worker, ids, head))
        reader.feed = lambda data: reader.inner.feed(data[: data.rfind(b"\n") + 1])  # type: ignore[method-assign]
        return reader


class AcceptsAnyEnd(EchoFormat):
    """Accepts a truncated stream."""

    def reader(self, request: EchoRequest, worker: WorkerView, ids: Ids, head: ReplyHead) -> Reader:
        reader = Rewired(super().reader(request, worker, ids, head))

        def finish() -> bytes:
            try:
                return reader.inner.finish()
            except UpstreamIncomplete:
                return b""

        reader.finish = finish  # type: ignore[method-assign]
        return reader


class JoinsBackwards(JoiningEcho):
    def joined(self, reply: dict[str, Any]) -> dict[str, Any]:
        return {**reply, "words": reply["words"][::-1]} if "words" in reply else reply


class CutsArrays(JoiningEcho):
    def joined(self, reply: dict[str, Any]) -> dict[str, Any]:
        return {**reply, "voice": reply["voice"][4:]} if "voice" in reply else reply


class JoinsAWordALine(JoiningEcho):
    """Joins only one word of each line."""

    words_of_a_line = 1


class CountsTwice(JoiningEcho):
    """Doubles the tokens of a join."""

    weight = 2


class BrokenModel(JoiningEchoModel):
    """The sample's model with a broken format."""

    def __init__(self, format: EchoFormat) -> None:
        self.broken = format

    @property
    def format(self) -> AnyFormat:
        return self.broken


BROKEN: tuple[tuple[Law, type[EchoFormat]], ...] = (
    (laws.parse_and_project_are_total, Chokes),
    (laws.splice_then_unsplice_is_the_identity, KeepsTheClientsTag),
    (laws.splice_then_unsplice_is_the_identity, Respells),
    (laws.splice_then_unsplice_is_the_identity, ShowsThePrivateTag),
    (laws.relay_is_the_identity, Holds),
    (laws.recutting_changes_nothing, TakesReadsForLines),
    (laws.truncated_stream_is_never_complete, AcceptsAnyEnd),
    (laws.stream_and_unary_give_the_same_reply, JoinsBackwards),
    (laws.joining_is_associative, JoinsAWordALine),
    (laws.facts_agree, CountsTwice),
    (laws.base64_survives, CutsArrays),
)


@pytest.fixture(autouse=True)
def _as_found() -> Iterator[None]:
    """Load a profile that finds a failure without making it smaller."""
    before = settings.get_current_profile_name()
    settings.register_profile("as-found", phases=[Phase.generate], report_multiple_bugs=False, database=None)
    settings.load_profile("as-found")
    yield
    settings.load_profile(before)


def contract(format: EchoFormat, *chosen: Law, examples: int) -> FormatContract:
    class Contract(FormatContract):
        model = BrokenModel(format)
        cases = examples
        laws = chosen

    return Contract()


@pytest.mark.parametrize(("law", "broken"), BROKEN, ids=lambda part: part.__name__)
def test_format_that_breaks_a_law_is_found_out(law: Law, broken: type[EchoFormat]) -> None:
    with pytest.raises((AssertionError, KeyError, TypeError, ValueError)):
        contract(broken(), law, examples=200).test_laws_hold()


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_law_has_a_format_that_breaks_it(law: Law) -> None:
    assert law in [broken for broken, _ in BROKEN]


def test_same_format_unbroken_passes() -> None:
    """The failures above come from what is broken."""
    contract(JoiningEcho(), *LAWS, examples=100).test_laws_hold()


def test_law_that_applies_to_nothing_is_a_failure_unless_it_is_declared() -> None:
    """A model that draws too little does not pass by accident."""

    def never(*_: Any) -> bool:
        return False

    with pytest.raises(AssertionError, match="apply to no exchange"):
        contract(JoiningEcho(), never, examples=5).test_laws_hold()
    silent = contract(JoiningEcho(), never, examples=5)
    type(silent).silent = frozenset({"never"})
    silent.test_laws_hold()


def test_law_that_is_declared_silent_and_applies_is_a_failure() -> None:
    """A declaration that is not true is a failure."""
    loud = contract(JoiningEcho(), laws.facts_agree, examples=5)
    type(loud).silent = frozenset({"facts_agree"})
    with pytest.raises(AssertionError, match="apply to no exchange"):
        loud.test_laws_hold()
