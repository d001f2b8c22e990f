"""Warnings and errors about security at the start of a gateway."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.security.certificates import Authority
from tests.support.processes import free_port, line_with, run, running


def _start_log(*flags: str) -> str:
    """Return the log of a start, up to the line that it listens."""
    with running("serve", "--port", str(free_port()), *flags) as process:
        lines = []
        for line in process.stderr or ():
            lines.append(line)
            if "listening on" in line:
                return "".join(lines)
    raise AssertionError("".join(lines))


def test_start_warns_of_open_control_routes_and_of_workers_that_are_not_checked(authority: Authority) -> None:
    """Control routes are safe where nobody else can reach them. With TLS the URL that is logged is https."""
    assert "control routes are open to all who can reach 0.0.0.0 port" in _start_log("--host", "0.0.0.0")
    certificate, key = authority.files()
    flags = ("--worker-tls-insecure", "--ssl-certfile", certificate, "--ssl-keyfile", key)
    log = _start_log("--host", "127.0.0.1", *flags)
    assert "control routes" not in log and "listening on https://127.0.0.1:" in log
    assert "CERTIFICATES OF WORKERS ARE NOT CHECKED" in log
    assert "control routes" not in _start_log("--host", "0.0.0.0", "--admin-api-key", "key-of-admins")


@pytest.mark.parametrize("flag", ["--ssl-certfile", "--api-key-file"])
def test_missing_file_is_an_error_of_one_line(flag: str, tmp_path: Path) -> None:
    ended = run("serve", "--port", str(free_port()), flag, str(tmp_path / "nowhere"))
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    assert f"{flag}: {tmp_path}/nowhere cannot be used: No such file or directory" in ended.stderr


def test_key_with_a_space_is_refused_without_showing_it() -> None:
    ended = run("serve", "--api-key", "two words")
    assert ended.returncode == 2
    assert "--api-key: must be printable ASCII without spaces" in ended.stderr
    assert "two words" not in ended.stderr


def test_debug_log_contains_no_key() -> None:
    flags = ("--host", "127.0.0.1", "--log-level", "debug", "--api-key", "key-of-clients")
    with running("serve", "--port", str(free_port()), *flags) as process:
        line_with(process.stderr, "listening on")
        process.terminate()
        out, err = process.communicate(timeout=30)
    assert "key-of-clients" not in out + err
