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


def test_start_warns_of_open_control_routes_that_others_can_reach() -> None:
    assert "control routes are open to all who can reach 0.0.0.0 port" in _start_log("--host", "0.0.0.0")
    assert "control routes" not in _start_log("--host", "127.0.0.1")
    assert "control routes" not in _start_log("--host", "0.0.0.0", "--admin-api-key", "key-of-admins")


def test_start_warns_of_workers_whose_certificates_are_not_checked() -> None:
    assert "CERTIFICATES OF WORKERS ARE NOT CHECKED" in _start_log(
        "--host", "127.0.0.1", "--worker-tls-insecure"
    )


def test_start_with_tls_logs_an_https_url(authority: Authority) -> None:
    certificate, key = authority.files()
    flags = ("--host", "127.0.0.1", "--ssl-certfile", certificate, "--ssl-keyfile", key)
    assert "listening on https://127.0.0.1:" in _start_log(*flags)


@pytest.mark.parametrize("flag", ["--ssl-certfile", "--api-key-file", "--worker-ca-file"])
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
