"""One line per request, whatever text clients and workers sent."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from gateway.errors import InvalidRequest, PoisonedRequest, UpstreamIncomplete
from gateway.exchange import ExchangeRecord, ExchangeState
from gateway.formats.contract import Ending
from gateway.telemetry.access_log import AccessLog, line_of
from tests.telemetry.support import completed, dispatched, failed

NASTY = ['quote"', "two\nlines", "\x1b[2Jclear", "next\x85line\u2028", "nul\x00", "ö", "\ud800", "a\\b"]


def logged(*exchanges: ExchangeRecord, shape: Any = "json", process: int | None = None) -> list[str]:
    reading, writing = os.pipe()
    log = AccessLog(shape=shape, fd=writing, process=process)
    for exchange in exchanges:
        log.record(exchange)
    log.close()
    os.close(writing)
    with open(reading, "rb") as stream:
        return stream.read().decode("ascii").splitlines()


def test_completed_stream_is_logged_with_all_fields() -> None:
    exchange = completed(
        stream=True,
        public_id="job-1",
        session="agent-1",
        ending=Ending.STOP,
        routing_data={"worker_id": 7, "timing": {"queue_ms": 1.5}, "token_ids": [1, 2, 3]},
        cached_tokens=5,
        finish_reasons=("stop",),
        request_bytes=11,
        reply_bytes=22,
    )
    (line,) = logged(exchange)
    facts = json.loads(line)
    moment = datetime.fromisoformat(facts.pop("time"))
    assert abs((datetime.now(UTC) - moment).total_seconds()) < 60
    asked = {"request_id": "job-1", "session_id": "agent-1", "format": "fmt", "endpoint": "/generate"}
    served = {"request_type": "stream", "model": "m", "worker": "http://w:1", "attempts": 1}
    ended = {"status": 200, "outcome": "completed", "ending": "stop", "finish_reasons": {"stop": 1}}
    sizes = {"isl": 7, "osl": 3, "cached": 5, "request_bytes": 11, "reply_bytes": 22}
    times = {"ttft_ms": 500.0, "itl_ms": 100.0, "elapsed_ms": 2000.0}
    faults = {"error_type": "", "error": None, "rule": None}
    routing = {"routing": {"worker_id": 7, "timing": {"queue_ms": 1.5}}}
    assert facts == {**asked, **served, **ended, **sizes, **times, **faults, **routing}


def test_failure_names_its_code_and_rule_and_never_its_cause() -> None:
    error = UpstreamIncomplete("the reply was cut", cause=ValueError("a secret prompt"))
    (line,) = logged(failed(error, dispatched()))
    facts = json.loads(line)
    found = [facts[name] for name in ("status", "outcome", "error", "error_type")]
    assert found == [502, "failed", "upstream_incomplete", "internal"]
    assert "secret" not in line
    errors = (InvalidRequest("no", rule="empty_text"), InvalidRequest("no"), PoisonedRequest("no"))
    rules = [json.loads(line)["rule"] for line in logged(*map(failed, errors))]
    assert rules == ["empty_text", None, "poison_window"]


ROUTING_DATA: list[tuple[dict[str, Any], object]] = [
    ({}, None),
    ({"token_ids": [1, 2]}, None),
    ({"worker_id": "w" * 1000}, {"worker_id": "w" * 256 + "..."}),
    ({"worker_id": 2**200}, {"worker_id": "..."}),
    ({"worker_id": None, "timing": [1, 2]}, {"worker_id": None, "timing": "..."}),
    ({"worker_id": "\ud800\x1b"}, {"worker_id": "\ud800\x1b"}),
    ({"timing": {"a": {"b": {"c": 1}}}}, {"timing": {"a": {"b": "..."}}}),
    ({"timing": {str(i): i for i in range(100)}}, {"timing": {str(i): i for i in range(16)}}),
    ({"timing": {"k" * 1000: True}}, {"timing": {"k" * 256 + "...": True}}),
]


@pytest.mark.parametrize(("data", "written"), ROUTING_DATA)
def test_routing_data_is_logged_within_limits_and_without_the_prompt(
    data: dict[str, Any], written: object
) -> None:
    (line,) = logged(completed(routing_data=data))
    assert json.loads(line)["routing"] == written
    (line,) = logged(completed(routing_data=data), shape="text")
    assert line.isprintable()
    assert ("routing=" in line) is (written is not None)


@pytest.mark.parametrize("public_id", NASTY)
def test_no_id_can_break_a_line(public_id: str) -> None:
    (line,) = logged(completed(public_id=public_id))
    assert json.loads(line)["request_id"] == public_id
    assert "\x1b" not in line
    (line,) = logged(completed(public_id=public_id), shape="text")
    assert line.isprintable()


def test_long_ids_and_many_finish_reasons_are_cut_before_they_are_buffered() -> None:
    line = line_of(completed(public_id="x" * 1_000_000, session="s" * 1_000_000), datetime.now(UTC))
    assert (line.request_id, line.session_id) == ("x" * 256 + "...", "s" * 256 + "...")
    reasons = ("stop",) * 1000 + ("length",) * 24 + tuple("z" * 500 + str(i) for i in range(40))
    facts = json.loads(logged(completed(finish_reasons=reasons))[0])
    assert (facts["finish_reasons"]["stop"], facts["finish_reasons"]["length"]) == (1000, 24)
    assert len(json.dumps(facts)) < 8000


def test_text_line_has_names_and_leaves_out_empty_values() -> None:
    (line,) = logged(completed(public_id="job 1", finish_reasons=("stop", "stop")), shape="text")
    assert ' request_id="job 1" ' in line and "finish_reasons=stop:2" in line
    assert "error" not in line and "ttft_ms" not in line


def test_disabled_log_writes_nothing_and_starts_no_thread() -> None:
    log = AccessLog(enabled=False)
    log.record(completed())
    log.close()
    assert log.dropped == 0


def test_full_disk_is_one_line_in_the_other_log(caplog: pytest.LogCaptureFixture) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    for _ in range(2):
        log = AccessLog(fd=full)
        log.record(completed())
        log.close()
        assert log.dropped == 1
    os.close(full)
    line = "the access log could not be written, its lines are lost: No space left on device"
    assert [record.getMessage() for record in caplog.records] == [line] * 2


def test_line_keeps_no_reference_to_the_exchange_or_its_error() -> None:
    exchange = failed(UpstreamIncomplete("cut", cause=ValueError("large")), dispatched())
    line = line_of(exchange, datetime.now(UTC))
    values = [getattr(line, name) for name in line.__struct_fields__]
    plain = (str, int, float, datetime, dict, type(None), msgspec.UnsetType, ExchangeState, Ending)
    assert all(type(value) in plain for value in values)


def test_line_names_its_process_if_there_are_several() -> None:
    """In both formats, whatever the ids are; with one process there is no such field."""
    for public_id in ("a", "\ud800"):
        (line,) = logged(completed(public_id=public_id), process=7)
        assert json.loads(line)["process"] == 7
        assert "process" not in logged(completed(public_id=public_id))[0]
        assert logged(completed(public_id=public_id), shape="text", process=7)[0].endswith(" process=7")
