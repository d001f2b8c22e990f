"""Records are read as they were written, and the gateway's own output is parsed."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from benchmarks.page import replace_part
from tests.chaos.run import page, watch
from tests.chaos.run.dialects import body_of, dispatch_id_of, marker_of
from tests.chaos.run.records import Book, ClientRecord, Outcome, WorkerAbort, WorkerMilestone, read


def test_book_holds_each_record_as_soon_as_it_is_written(tmp_path: Path) -> None:
    """A record is in the file at once, because its process may be killed at any time."""
    record = ClientRecord("a", "stream", "sglang", outcome=Outcome.COMPLETE)
    milestone, abort = WorkerMilestone(0, 1, 2.5, "arrived", "a", "job"), WorkerAbort(0, 1, 3.0, ["job"])
    book = Book(tmp_path / "book")
    for each in (record, milestone, abort):
        book.write(each)
    assert read(tmp_path / "book", ClientRecord) == [record]
    assert read(tmp_path / "book", WorkerMilestone) == [milestone]
    assert read(tmp_path / "book", WorkerAbort) == [abort]
    book.close()


def test_book_that_nobody_began_is_empty(tmp_path: Path) -> None:
    assert read(tmp_path / "none", WorkerMilestone) == []


def test_worker_finds_marker_and_id_in_the_bytes_of_a_request() -> None:
    for kind, prefix in (("sglang", ""), ("vllm", "generate-tokens-")):
        body = body_of(kind, "rc1n2", [5], 3, stream=True, id="träger")
        assert marker_of(body) == "rc1n2"
        assert dispatch_id_of(kind, None, body) == prefix + "träger"


def test_access_log_is_found_among_other_lines(tmp_path: Path) -> None:
    log = tmp_path / "gateway.log"
    log.write_text('listening\n{"outcome": "completed", "session_id": "a"}\n{"level": "info"}\n')
    assert watch.access_lines(log) == [{"outcome": "completed", "session_id": "a"}]


def test_series_of_a_metric_are_summed_by_their_labels() -> None:
    found = {
        ("requests_total", frozenset({("status", "success"), ("model", "a")})): 2.0,
        ("requests_total", frozenset({("status", "success"), ("model", "b")})): 3.0,
        ("requests_total", frozenset({("status", "error"), ("model", "b")})): 4.0,
    }
    assert watch.total(found, "requests_total", status="success") == 5.0
    assert watch.total(found, "requests_total") == 9.0


def test_sockets_are_distinguished_by_their_peers() -> None:
    """In this process: one socket to a worker, one of a client; the two listening sockets do not count."""
    with socket.create_server(("127.0.0.1", 0)) as gateway, socket.create_server(("127.0.0.1", 0)) as worker:
        ports = [each.getsockname()[1] for each in (gateway, worker)]
        assert watch.sockets(os.getpid(), ports[0], [ports[1]]) == (0, 0)
        with socket.create_connection(("127.0.0.1", ports[1])):
            assert watch.sockets(os.getpid(), ports[0], [ports[1]]) == (1, 0)
        with socket.create_connection(("127.0.0.1", ports[0])), gateway.accept()[0]:
            assert watch.sockets(os.getpid(), ports[0], [ports[1]])[1] == 1


def test_figures_go_between_their_markers_and_the_plot_beside_the_page(tmp_path: Path) -> None:
    file = tmp_path / "reliability.md"
    file.write_text("By hand.\n<!-- bench: soak -->\nstale\n<!-- end: soak -->\n")
    link = page.write_plot("soak", "<svg/>", file)
    page.write("soak", f"![]({link})", file)
    assert "By hand." in file.read_text() and "stale" not in file.read_text()
    assert (tmp_path / "reliability" / "soak.svg").read_text() == "<svg/>"


def test_own_page_has_both_markers() -> None:
    text = page.PAGE.read_text()
    for part in ("chaos", "soak"):
        assert replace_part(text, part, "x") != text
