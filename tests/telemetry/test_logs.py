"""Log lines go through one handler, which never blocks and escapes control characters."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gateway.telemetry.logs import Logs


class Captured:
    text = ""


@contextmanager
def capturing(level: str, process: int | None = None) -> Iterator[Captured]:
    reading, writing = os.pipe()
    captured = Captured()
    with Logs(level, writing, process=process):
        yield captured
    os.close(writing)
    with open(reading, "rb") as stream:
        captured.text = stream.read().decode()


@pytest.mark.parametrize(("process", "named"), [(None, ""), (7, "[7] ")])
def test_line_holds_time_level_process_logger_and_message(process: int | None, named: str) -> None:
    with capturing("info", process) as captured:
        logging.getLogger("gateway.x").info("worker %s is %s", "a", "ready")
    assert captured.text.endswith(f"Z INFO {named}gateway.x: worker a is ready\n")


def test_less_severe_lines_are_left_out() -> None:
    """Libraries that log each request are limited to warnings."""
    with capturing("warning") as captured:
        logging.getLogger("gateway.x").info("no")
        logging.getLogger("gateway.x").warning("yes")
    assert "yes" in captured.text and "no" not in captured.text
    with capturing("debug") as captured:
        logging.getLogger("httpx").info("HTTP Request: GET")
    assert captured.text == ""


def test_message_cannot_forge_a_line() -> None:
    """Only a traceback follows its line."""
    with capturing("info") as captured:
        logging.getLogger("gateway.x").info("%s", "a\n2026 INFO forged\x1b[0m\u2028")
    assert captured.text.count("\n") == 1
    assert "a\\n2026 INFO forged\\x1b[0m\\u2028" in captured.text
    with capturing("info") as captured:
        try:
            raise ValueError("deep\ud800")
        except ValueError:
            logging.getLogger("gateway.x").exception("failed")
    assert "ERROR gateway.x: failed\nTraceback" in captured.text
    assert captured.text.endswith("ValueError: deep\\ud800\n")


def test_closing_restores_what_was_there() -> None:
    root, library = logging.getLogger(), logging.getLogger("httpx")
    before = (root.level, root.handlers[:], library.level)
    with capturing("debug"):
        assert root.handlers != before[1]
    assert (root.level, root.handlers, library.level) == before
