"""Builders of a report and a result for the tests of the benchmarks."""

from __future__ import annotations

from benchmarks.report import Report
from benchmarks.table import DOES_NOT, HOLDS, Result

MACHINE = {
    "cores": 2, "processor": "a processor", "memory_gib": 8.0, "kernel": "6.1", "python": "3.11.7",
    "load_average": 0.1,
}  # fmt: skip


def result(name: str = "unary", ours: float = 50.0) -> Result:
    return Result(
        name, "unary, 1 token, 32 connections", "us a request",
        {"smg": 60.0, "gateway": ours}, "smg", ours / 60,
        "at most 1 x the best router", HOLDS if ours <= 60 else DOES_NOT, {}, {"direct": 9e4, "gateway": 1e4},
        "wrk", {"direct": 0.8, "gateway": 0.2},
    )  # fmt: skip


def report(**more: object) -> Report:
    made = Report(dict(MACHINE), ["make bench"], "short", date="2026-11-29")
    made.targets = {
        "smg": {"version": "1.13.0", "command": ""},
        "gateway": {"version": "abc123", "command": ""},
    }
    for name, value in more.items():
        setattr(made, name, value)
    return made
