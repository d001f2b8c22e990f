"""CPU time, memory and open files are summed over processes."""

from __future__ import annotations

import os

from prometheus_client.parser import text_string_to_metric_families

from gateway.telemetry.process import process_text, process_values


def _values(text: bytes) -> dict[str, float]:
    families = text_string_to_metric_families(text.decode())
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_values_of_another_process_are_its_own() -> None:
    assert process_values(os.getppid())["process_start_time_seconds"] > 0
    assert process_values()["process_open_fds"] > 2


def test_text_is_the_sum_except_for_the_start_time() -> None:
    own = process_values()
    summed = {"process_max_fds": 1000.0, "process_start_time_seconds": 7.0}
    found = _values(process_text(summed, os.getpid()))
    assert found.keys() == own.keys()
    assert found["process_max_fds"] == own["process_max_fds"] + 1000
    assert found["process_start_time_seconds"] == own["process_start_time_seconds"]


def test_process_that_has_ended_has_no_values() -> None:
    pid = os.posix_spawn("/bin/true", ["/bin/true"], {})
    os.waitpid(pid, 0)
    assert process_values(pid) == {}
    assert process_text({"process_open_fds": 3.0}, pid) == b""
