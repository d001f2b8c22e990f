"""A seed determines a run, and each figure that a run is judged by can differ from a good one."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.page import replace_part
from tests.chaos.run import watch
from tests.chaos.run.__main__ import second_host
from tests.chaos.run.choices import WEIGHTS, choices
from tests.chaos.run.dialects import output_of, prompt_of
from tests.chaos.run.expected import Expected, Wrong
from tests.chaos.run.flat import Series
from tests.chaos.run.plan import FAULTS, LOSE_HOST, plan
from tests.chaos.run.records import Book, ClientRecord, Outcome, WorkerMilestone, read
from tests.chaos.run.report import PAGE
from tests.support import hosts


def test_seed_reproduces_faults_and_choices() -> None:
    assert plan("7", 60, 4) == plan("7", 60, 4) != plan("8", 60, 4)
    first, again, other = (list(islice(choices(seed), 500)) for seed in ("7", "7", "8"))
    assert first == again != other
    assert {choice.what for choice in first} == set(WEIGHTS)


def test_every_kind_of_fault_comes_in_a_short_run_one_at_a_time_and_none_at_the_end() -> None:
    for seed in range(50):
        faults = plan(str(seed), 20, 4, apart=2)
        assert {fault.what for fault in faults} == {*FAULTS, LOSE_HOST}
        assert {fault.worker for fault in faults if fault.what == LOSE_HOST} == {2}
        assert {fault.what for fault in plan(str(seed), 18, 4)} == set(FAULTS)
        assert all(fault.until < 20 for fault in faults)
        for worker in range(4):
            own = [fault for fault in faults if fault.worker == worker]
            assert all(before.until <= after.at for before, after in zip(own, own[1:], strict=False))


def test_run_without_root_goes_on_without_a_second_host_and_knows_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hosts, "_LIBC", SimpleNamespace(unshare=lambda flags: -1))
    with ExitStack() as stack:
        there, reason = second_host(stack)
    assert there is None and reason.startswith("NOT TESTED")


@pytest.mark.parametrize("wrong", ["id", "tokens", "length"])
def test_reply_of_another_request_is_noticed(wrong: str) -> None:
    tokens = output_of(prompt_of("a", 4), 2)
    found = {"tokens": output_of(prompt_of("b", 4), 2), "length": tokens[:1]}.get(wrong, tokens)
    reply = '{"output_ids": %s, "meta_info": {"id": "%s", "finish_reason": {"type": "length"}}}'
    good, bad = Expected("sglang", "a", tokens), Expected("sglang", "a", tokens)
    good.part((reply % (tokens, "a")).encode())
    good.check()
    with pytest.raises(Wrong):
        bad.part((reply % (found, "b" if wrong == "id" else "a")).encode())
        bad.check()


def test_book_holds_each_record_as_soon_as_it_is_written(tmp_path: Path) -> None:
    """A record is in the file at once, because its process may be killed at any time."""
    record = ClientRecord("a", "stream", "sglang", outcome=Outcome.COMPLETE)
    milestone, book = WorkerMilestone(0, 1, 2.5, "arrived", "a", "job"), Book(tmp_path / "book")
    book.write(record)
    book.write(milestone)
    assert read(tmp_path / "book", ClientRecord) == [record]
    assert read(tmp_path / "book", WorkerMilestone) == [milestone]


def test_sockets_are_distinguished_by_their_peers() -> None:
    """In this process: one socket to a worker, one of a client; the two listening sockets do not count."""
    with socket.create_server(("127.0.0.1", 0)) as gateway, socket.create_server(("127.0.0.1", 0)) as worker:
        ports = [each.getsockname()[1] for each in (gateway, worker)]
        assert watch.sockets(os.getpid(), ports[0], [ports[1]]) == (0, 0)
        with socket.create_connection(("127.0.0.1", ports[1])):
            assert watch.sockets(os.getpid(), ports[0], [ports[1]]) == (1, 0)
        with socket.create_connection(("127.0.0.1", ports[0])), gateway.accept()[0]:
            assert watch.sockets(os.getpid(), ports[0], [ports[1]])[1] == 1


@pytest.mark.parametrize(
    ("growth", "least", "flat"), [(0.2, 0.0, False), (0.0, 0.0, True), (-0.2, 0.0, True), (0.2, 15.0, True)]
)
def test_leak_is_not_flat_but_trembling_and_falling_are(growth: float, least: float, flat: bool) -> None:
    points = [(float(second), 100 + growth * second + second % 3) for second in range(60)]
    series = Series("memory", " MiB", points, 0.05, least)
    assert series.flat is flat and series.summary.endswith("NOT FLAT") is not flat


def test_page_has_a_place_for_the_figures_of_both_runs() -> None:
    for part in ("chaos", "soak"):
        assert replace_part(PAGE.read_text(), part, "x") != PAGE.read_text()
