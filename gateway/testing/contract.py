"""The suite that any format must pass: subclass it, name your model, run pytest.

Owns: the laws as tests, and what a format promises beside them: its shape, its errors, its probes, replies
of every kind. Must never enter: a dialect, sockets (endpoint.py).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from gateway import errors
from gateway.errors import GatewayError, InvalidRequest
from gateway.formats.contract import ReplyHead, header
from gateway.formats.optional import AbortTarget, JoinsStreams, WorkerHealth
from gateway.formats.registry import check_format
from gateway.formats.worker_contract import ProbeReply, WorkerInfo
from gateway.testing.damage import ANY_JSON, bodies, cuts, damaged
from gateway.testing.drive import Asked, drive, strings
from gateway.testing.laws import JOIN_LAWS, LAWS, Law
from gateway.testing.model import EngineModel, ModelExchange

#: Every kind of failure a format may have to tell a client of.
KINDS: tuple[type[GatewayError], ...] = tuple(
    kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, GatewayError)
)
_MESSAGES = ("plain", 'quoted " and \\', "line\nbreak", "caf\u00e9 \U0001f600", "lone \ud800 surrogate", "")
_TYPES = st.sampled_from(
    (b"application/json", b"text/event-stream", b"text/plain; charset=utf-8", b"application/x-ndjson", b"")
)
_STATUSES = st.sampled_from((200, 200, 204, 301, 400, 404, 429, 500, 503))


class FormatContract:
    """The contract suite of one format. Subclass it once per model.

    ``cases`` is the number of exchanges that the laws are tried on, None: ``max_examples`` of the hypothesis
    profile in use. ``laws`` are the laws that are tried. ``silent`` names the laws that never apply to an
    exchange of the model, such as ``base64_survives`` where no reply contains an array; every other law must
    apply to at least one exchange.
    """

    model: ClassVar[EngineModel]
    cases: ClassVar[int | None] = None
    laws: ClassVar[tuple[Law, ...]] = LAWS
    silent: ClassVar[frozenset[str]] = frozenset()

    def test_laws_hold(self) -> None:
        """All of them on each of ``cases`` exchanges: to make one up costs more than to try a law on it."""
        applied: Counter[str] = Counter()

        def check(exchange: ModelExchange, data: st.DataObject) -> None:
            for law in self.laws:
                note(f"law: {law.__name__}")
                applied[law.__name__] += law(self.model, exchange, data)

        self._try(check, "laws", cases=None, exchange=self.model.exchanges(), data=st.data())
        idle = {law.__name__ for law in self.laws if not applied[law.__name__]}
        silent = self.silent if isinstance(self.model.format, JoinsStreams) else self.silent | JOIN_LAWS
        assert idle == silent & {law.__name__ for law in self.laws}, (
            "laws that apply to no exchange of the model, and those declared so"
        )

    def test_shape_is_the_contracts(self) -> None:
        """What the gateway checks at start-up holds, and so does what it cannot check."""
        format = self.model.format
        check_format(format, "under test")
        info = self.model.worker.info
        assert info is not None and info.usable and info.capability == format.capability

    @pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
    def test_every_error_is_rendered(self, kind: type[GatewayError]) -> None:
        """As JSON that holds the message, with its status, and ``Retry-After`` where that is known."""
        for message in _MESSAGES:
            error = kind(message)
            reply = self.model.format.render(error)
            wait = None if error.retry_after is None else b"%d" % error.retry_after
            assert reply.status == error.status
            assert header(reply.headers, b"content-type") == b"application/json"
            assert header(reply.headers, b"retry-after") == wait
            assert message in strings(json.loads(reply.body))

    def test_client_that_fails_after_commit_is_told_once(self) -> None:
        """The in-band end follows whole events and names the failure; a reader has it ready at any time."""

        def check(exchange: ModelExchange, data: st.DataObject) -> None:
            asked = Asked(self.model, exchange)
            reader = self.model.format.reader(
                asked.request, self.model.worker, asked.ids, exchange.stream_head
            )
            kept = data.draw(st.integers(0, len(exchange.stream) - 1), "events before the failure")
            for event in exchange.stream[:kept]:
                reader.feed(event)
            end = reader.fail(errors.UpstreamIncomplete("the worker went away"))
            assert reader.facts.terminal or not end or b"the worker went away" in end

        self._try(check, "fail", exchange=self.model.exchanges(), data=st.data())

    def test_reply_of_any_kind_is_read(self) -> None:
        """Any status, content type and body is passed on or fails as UpstreamIncomplete or -Malformed."""

        def check(exchange: ModelExchange, status: int, kind: bytes, data: st.DataObject) -> None:
            asked = Asked(self.model, exchange)
            headers = [(b"content-type", kind)] if kind else []
            body = data.draw(damaged(exchange.unary) | damaged(b"".join(exchange.stream)), "body")
            pieces = data.draw(cuts(body), "pieces")
            format = self.model.format
            joins = [format.join] if isinstance(format, JoinsStreams) else []
            for make in (format.reader, *joins):
                reader = make(asked.request, self.model.worker, asked.ids, ReplyHead(status, headers))
                told = drive(reader, pieces)
                assert told.failure is not None or told.facts.ending is not None
                if status != 200:
                    assert (told.out, told.failure) == (body, None)

        self._try(
            check,
            "any_reply",
            exchange=self.model.exchanges(),
            status=_STATUSES,
            kind=_TYPES,
            data=st.data(),
        )

    def test_reply_that_is_no_stream_joins_to_itself(self) -> None:
        """A join reader that was given a whole reply hands that on."""
        format = self.model.format
        if not isinstance(format, JoinsStreams):
            return

        def check(exchange: ModelExchange) -> None:
            asked = Asked(self.model, exchange)
            reader = format.join(asked.request, self.model.worker, asked.ids, exchange.unary_head)
            told = drive(reader, (exchange.unary,))
            assert (told.out, told.failure) == (exchange.unary, None)

        self._try(check, "whole_reply", exchange=self.model.exchanges())

    def test_answers_of_any_server_are_identified(self) -> None:
        """No answer is ever an exception: a server is one of this dialect, or it is not."""
        targets = [probe.target for probe in self.model.format.probes]
        answers = st.builds(
            ProbeReply,
            st.sampled_from((200, 401, 404, 500, 503)),
            st.binary(max_size=16) | ANY_JSON.map(lambda value: json.dumps(value).encode()),
        )
        replies = st.dictionaries(st.sampled_from(targets), answers)
        assert self.model.format.identify({}) is None

        def check(replies: dict[str, ProbeReply]) -> None:
            found = self.model.format.identify(replies)
            assert found is None or isinstance(found, WorkerInfo)
            assert found is None or found.usable or found.reason

        self._try(check, "identify", replies=replies)

    def test_health_and_load_of_any_answer_are_read(self) -> None:
        """No answer is ever an exception, and no load below 0."""
        format = self.model.format
        answers = st.builds(
            ProbeReply,
            st.sampled_from((200, 401, 404, 500, 503)),
            st.binary(max_size=16) | ANY_JSON.map(lambda value: json.dumps(value).encode()),
        )

        def check(reply: ProbeReply) -> None:
            assert isinstance(format.read_health(reply), WorkerHealth)
            for question in format.loads:
                load = format.read_load(question, reply)
                assert load is None or (load.running >= 0 and load.waiting >= 0)

        assert format.read_health(ProbeReply(200, b"")) is WorkerHealth.GOOD
        self._try(check, "load", reply=answers)

    def test_abort_call_of_any_body_is_read(self) -> None:
        """It names ids, or everything, or is an InvalidRequest."""

        def check(body: bytes) -> None:
            try:
                assert isinstance(self.model.format.aborted_ids(body), AbortTarget)
            except InvalidRequest as error:
                assert error.message

        self._try(check, "abort", body=bodies(b'{"rid": "a", "request_ids": ["a"], "tag": "a"}'))

    def test_setting_that_does_not_exist_is_refused_by_name(self) -> None:
        """A misspelt setting is a start-up error; none at all gives the format as it is."""
        format = self.model.format
        assert format.configured({}).name == format.name
        with pytest.raises(ValueError, match="no_such_setting"):
            format.configured({"no_such_setting": "1"})

    def test_openapi_describes_request_and_reply(self) -> None:
        """The page of the API has something to show, and it is JSON."""
        operation = self.model.format.openapi()
        json.dumps(operation)
        assert operation["summary"] and operation["requestBody"]["content"]
        assert "200" in operation["responses"]

    def _try(
        self,
        check: Callable[..., None],
        name: str,
        *,
        cases: int | None = 128,
        **drawn: st.SearchStrategy[object],
    ) -> None:
        """Run ``check`` on generated arguments; a failing one is shown as small as it can be made."""
        # What hypothesis keeps of failures from one run to the next, it keeps by name.
        check.__name__ = name
        check.__qualname__ = f"{type(self).__qualname__}.{name}"
        most = settings().max_examples if self.cases is None else self.cases
        run = settings(
            max_examples=most if cases is None else min(cases, most),
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        )(given(**drawn)(check))
        run()
