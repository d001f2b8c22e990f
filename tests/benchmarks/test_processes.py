"""Processes are measured with their children, and end with the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import procfs
from benchmarks.processes import NotStarted, Processes

#: Prints its pid and its child's; both work until they are killed.
PARENT = """
import os, time
child = os.fork()
if child:
    print(os.getpid(), child, flush=True)
while True:
    time.monotonic()
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_cpu_time_counts_children_too() -> None:
    with Processes() as processes:
        process = processes.start("parent", python(PARENT), piped=True)
        assert process.stdout is not None
        parent, child = map(int, process.stdout.readline().split())
        assert set(procfs.tree(process.pid)) == {parent, child}
        before = procfs.cpu_seconds(parent)
        while procfs.cpu_seconds(child) < 0.05:
            pass
        assert procfs.cpu_seconds(parent) - before >= procfs.cpu_seconds(child) - 0.03
        subprocess.run(["kill", str(child)], check=True)


def test_memory_that_is_taken_is_seen() -> None:
    code = "input(print('up', flush=True)); held = b'x' * 2**25; input(print('held', flush=True))"
    with Processes() as processes:
        process = processes.start("memory", python(code), piped=True)
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        before = procfs.resident(process.pid)
        process.stdin.write(b"\n")
        process.stdin.flush()
        process.stdout.readline()
        assert 30 * 2**20 < procfs.resident(process.pid) - before < 40 * 2**20


def test_process_that_is_gone_costs_nothing_more() -> None:
    with Processes() as processes:
        process = processes.start("short", python(""))
        process.wait()
        assert procfs.cpu_seconds(process.pid) == 0
        assert procfs.resident(process.pid) == 0


def test_process_that_ends_before_it_answers_is_reported_with_its_log() -> None:
    with Processes() as processes:
        process = processes.start("broken", python("raise SystemExit('no such thing')"))
        with pytest.raises(NotStarted, match="broken ended.*no such thing"):
            processes.wait("broken", process, processes.port(), "/health")


def test_processes_are_gone_with_the_block_and_logs_stay_where_they_were_asked_for(tmp_path: Path) -> None:
    with Processes(tmp_path / "logs") as processes:
        process = processes.start("loop", python("print('here', flush=True)\nwhile True: pass"))
        while not (tmp_path / "logs" / "loop.log").read_text():
            pass
    assert process.returncode is not None
    assert (tmp_path / "logs" / "loop.log").read_text() == "here\n"


def test_checkout_with_changes_is_marked(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True)

    assert procfs.commit(tmp_path) == "unknown"
    (tmp_path / "gateway").mkdir()
    (tmp_path / "gateway" / "a.py").touch()
    for words in (("init",), ("add", "."), ("commit", "-m", "a")):
        git(*words)
    clean = procfs.commit(tmp_path)
    assert clean.isalnum()
    (tmp_path / "gateway" / "b.py").touch()
    assert procfs.commit(tmp_path) == f"{clean} and changes"
