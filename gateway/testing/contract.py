"""The contract suite of a format: subclass it, set ``model``, run pytest.

Owns: the laws as tests, and tests of what else a format promises: its members, its errors, its probes,
replies of every kind. Must never enter: a dialect, sockets (endpoint.py).
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
from gateway.testing.damage import ANY_JSON, bodies, damaged, splits
from gateway.testing.drive import ParsedExchange, drive, strings
from gateway.testing.laws import JOIN_LAWS, LAWS, Law
from gateway.testing.model import EngineModel, ModelExchange

#: Every class of error that a format may have to render.
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
        """All laws are tried on each exchange: generating one costs more than checking a law."""
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
        """The gateway accepts the plugin, and the model's worker offers its capability."""
        format = self.model.format
        check_format(format, "under test")
        info = self.model.worker.info
        assert info is not None and info.usable and info.capability == format.capability

    @pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
    def test_every_error_is_rendered(self, kind: type[GatewayError]) -> None:
        """As JSON with the message, the status, and ``Retry-After`` if the error has one."""
        for message in _MESSAGES:
            error = kind(message)
            reply = self.model.format.render(error)
            wait = None if error.retry_after is None else b"%d" % error.retry_after
            assert reply.status == error.status
            assert header(reply.headers, b"content-type") == b"application/json"
            assert header(reply.headers, b"retry-after") == wait
            assert message in strings(json.loads(reply.body))

    def test_failure_after_commit_names_the_error(self) -> None:
        """The in-band error follows complete events and contains the message, after any event."""

        def check(exchange: ModelExchange, data: st.DataObject) -> None:
            parsed = ParsedExchange(self.model, exchange)
            reader = self.model.format.reader(
                parsed.request, self.model.worker, parsed.ids, exchange.stream_head
            )
            kept = data.draw(st.integers(0, len(exchange.stream) - 1), "events before the failure")
            for event in exchange.stream[:kept]:
                reader.feed(event)
            end = reader.fail(errors.UpstreamIncomplete("the worker went away"))
            assert reader.facts.terminal or not end or b"the worker went away" in end

        self._try(check, "fail", exchange=self.model.exchanges(), data=st.data())

    def test_reply_of_any_kind_is_read(self) -> None:
        """Any status, content type and body is relayed, or raises UpstreamIncomplete or UpstreamMalformed."""

        def check(exchange: ModelExchange, status: int, kind: bytes, data: st.DataObject) -> None:
            parsed = ParsedExchange(self.model, exchange)
            headers = [(b"content-type", kind)] if kind else []
            body = data.draw(damaged(exchange.unary) | damaged(b"".join(exchange.stream)), "body")
            pieces = data.draw(splits(body), "pieces")
            format = self.model.format
            joins = [format.join] if isinstance(format, JoinsStreams) else []
            for make in (format.reader, *joins):
                reader = make(parsed.request, self.model.worker, parsed.ids, ReplyHead(status, headers))
                outcome = drive(reader, pieces)
                assert outcome.failure is not None or outcome.facts.ending is not None
                if status != 200:
                    assert (outcome.out, outcome.failure) == (body, None)

        self._try(
            check,
            "any_reply",
            exchange=self.model.exchanges(),
            status=_STATUSES,
            kind=_TYPES,
            data=st.data(),
        )

    def test_reply_that_is_no_stream_joins_to_itself(self) -> None:
        """A join reader relays a unary reply."""
        format = self.model.format
        if not isinstance(format, JoinsStreams):
            return

        def check(exchange: ModelExchange) -> None:
            parsed = ParsedExchange(self.model, exchange)
            reader = format.join(parsed.request, self.model.worker, parsed.ids, exchange.unary_head)
            outcome = drive(reader, (exchange.unary,))
            assert (outcome.out, outcome.failure) == (exchange.unary, None)

        self._try(check, "whole_reply", exchange=self.model.exchanges())

    def test_answers_of_any_server_are_identified(self) -> None:
        """No answer raises: a server speaks this dialect, or it does not."""
        format = self.model.format
        targets = [probe.target for probe in (*format.probes, *format.details)]
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
        """No answer raises, and no load is below 0."""
        format = self.model.format
        answers = st.builds(
            ProbeReply,
            st.sampled_from((200, 401, 404, 500, 503)),
            st.binary(max_size=16) | ANY_JSON.map(lambda value: json.dumps(value).encode()),
        )

        def check(reply: ProbeReply) -> None:
            assert isinstance(format.read_health(reply), WorkerHealth)
            for request in format.loads:
                load = format.read_load(request, reply)
                assert load is None or (load.running >= 0 and load.waiting >= 0)

        assert format.read_health(ProbeReply(200, b"")) is WorkerHealth.GOOD
        self._try(check, "load", reply=answers)

    def test_abort_call_of_any_body_is_read(self) -> None:
        """It names ids, or everything, or raises InvalidRequest."""

        def check(body: bytes) -> None:
            try:
                assert isinstance(self.model.format.aborted_ids(body), AbortTarget)
            except InvalidRequest as error:
                assert error.message

        self._try(check, "abort", body=bodies(b'{"rid": "a", "request_ids": ["a"], "tag": "a"}'))

    def test_setting_that_does_not_exist_is_refused_by_name(self) -> None:
        """A misspelt setting is a start-up error; no setting at all leaves the format as it is."""
        format = self.model.format
        assert format.configured({}).name == format.name
        with pytest.raises(ValueError, match="no_such_setting"):
            format.configured({"no_such_setting": "1"})

    def test_openapi_describes_request_and_reply(self) -> None:
        """As JSON, for the page of the API."""
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
        """Run ``check`` on generated arguments; hypothesis shows the smallest failing ones."""
        # Hypothesis stores failing examples under this name for the next run.
        check.__name__ = name
        check.__qualname__ = f"{type(self).__qualname__}.{name}"
        most = settings().max_examples if self.cases is None else self.cases
        run = settings(
            max_examples=most if cases is None else min(cases, most),
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow],
        )(given(**drawn)(check))
        run()
