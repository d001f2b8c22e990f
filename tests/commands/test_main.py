"""The commands: flags, exit codes, and one line for each error that a user can correct."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from gateway.commands.main import app
from gateway.process import server
from gateway.settings import Settings, flag_of, variable_of
from gateway.sim import SimConfig
from gateway.version import COMPILED
from gateway.wiring.app import create_app
from tests.support.processes import PATIENCE, free_port, line_with, refuses, run, running

runner = CliRunner()


@cache
def help_of(*command: str) -> str:
    """The help of a command, without white space."""
    return "".join(runner.invoke(app, [*command, "--help"]).output.split())


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """The settings that ``serve`` would have run with."""
    settings: list[Settings] = []

    def note(given: Settings) -> int:
        settings.append(given)
        return 0

    monkeypatch.setattr(server, "run", note)
    return settings


def test_help_of_serve_lists_the_flag_and_variable_of_every_setting_by_the_sections_of_the_settings() -> None:
    shown = runner.invoke(app, ["serve", "--help"]).output
    titles = [str(section.__doc__).removesuffix(".") for section in reversed(Settings.__bases__)]
    assert re.findall(r"^(\S.*):$", shown, re.MULTILINE) == [*titles, "Other options"]
    flags = re.findall(r"^  (--[a-z0-9-]+)", shown, re.MULTILINE)
    assert flags == [*map(flag_of, Settings.model_fields), "--help"]
    variables = [f"[{variable_of(field)}" for field in Settings.model_fields.values()]
    assert [each for each in variables if each not in help_of("serve")] == []


VALUES = {
    "--worker": "[FORMAT=]URL",
    "--endpoint": "[PATH=]FORMAT",
    "--router-mode": "least_in_flight|least_loaded|round_robin|random",
    "--access-log-format": "json|text",
    "--discovery-file": "PATH",
    "--metrics-path": "PATH",
    "--relay-path": "[FORMAT=]PATH",
    "--control-path": "TO=PATH",
    "--idle-timeout-secs": "[PATH=]SECONDS",
    "--connect-timeout-secs": "NUMBER",
    "--vocab-size": "INTEGER",
    "--api-key": "KEY",
    "--etcd-password": "PASSWORD",
}


def test_help_shows_the_kind_of_value_of_a_flag() -> None:
    assert [flag for flag, value in VALUES.items() if f"{flag}{value}" not in help_of("serve")] == []


def test_placeholders_of_all_commands_are_written_alike_and_no_summary_is_cut() -> None:
    for command in ("demo", "check", "serve", "sim vllm", "workers list", "workers add"):
        options = runner.invoke(app, [*command.split(), "--help"]).output.rpartition("Arguments:")[2]
        assert re.findall(r"--\S+ <.*", options) == []
    for group in ("", "sim", "workers"):
        commands = runner.invoke(app, [*group.split(), "--help"]).output.partition("Commands:")[2]
        assert commands.count("\n") > 2
        assert "..." not in commands


def test_older_name_of_a_flag_is_taken_and_is_named_as_such_in_the_help(served: list[Settings]) -> None:
    assert "oldername:--hold-seconds]" in help_of("serve")
    assert runner.invoke(app, ["serve", "--hold-seconds", "3", "--hold-bytes", "7"]).exit_code == 0
    assert (served[0].queue_seconds, served[0].queue_bytes) == (3, 7)


def test_flags_of_serve_override_the_environment_and_its_defaults_are_the_settings(
    served: list[Settings], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert runner.invoke(app, ["serve"]).exit_code == 0
    assert served == [Settings()]
    monkeypatch.setenv("DYN_HTTP_PORT", "9001")
    monkeypatch.setenv("DYN_ROUTER_MODE", "random")
    flags = ["--port", "9002", "--no-access-log", "--worker", "http://a:1", "--worker", "http://b:1"]
    assert runner.invoke(app, ["serve", *flags]).exit_code == 0
    found = served[1]
    assert (found.port, found.router_mode, found.access_log) == (9002, "random", False)
    assert found.worker == ("http://a:1", "http://b:1")


def test_unknown_variables_get_one_warning(served: list[Settings], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_HTTP_PROT", "1")
    monkeypatch.setenv("DYN_WROKER", "1")
    result = runner.invoke(app, ["serve"])
    assert result.exit_code == 0
    assert result.stderr.count("ignored environment variables") == 1
    assert "DYN_HTTP_PROT, DYN_WROKER" in result.stderr
    assert len(served) == 1


CLASHES = {
    ("--metrics-path", "/generate"): (
        "DYN_HTTP_SVC_SGLANG_GENERATE_PATH, --metrics-path: generate path '/generate' (sglang) clashes"
    ),
    ("--sglang-generate-path", "/metrics"): (
        "--sglang-generate-path, DYN_HTTP_SVC_METRICS_PATH: generate path '/metrics' (sglang) clashes"
    ),
    ("--vllm-generate-path", "/generate"): (
        "DYN_HTTP_SVC_SGLANG_GENERATE_PATH, --vllm-generate-path: generate path '/generate' is given"
    ),
    ("--vllm-generate-path", "/workers"): ("--vllm-generate-path: generate path '/workers' (vllm) clashes"),
    ("--metrics-path", "/health"): "--metrics-path, DYN_HTTP_SVC_HEALTH_PATH: '/health' is the path of two",
    ("--live-path", "/docs"): "--live-path: '/docs' is the path of two",
    ("--sglang-generate-path", "/a{b}"): "--sglang-generate-path: generate path has a character",
}
NOPE = "unknown format 'nope'; installed"


@pytest.mark.parametrize(
    ("flags", "variables", "message"),
    [
        (["--port", "x"], {}, "--port: "),
        ([], {"DYN_METRICS_TTFT_MIN": "-1"}, "DYN_METRICS_TTFT_MIN: "),
        (["--generate-format", "nope"], {}, f"--generate-format: {NOPE} formats: sglang, "),
        ([], {"DYN_GENERATE_FORMAT": "nope"}, "DYN_GENERATE_FORMAT: "),
        (["--worker", "nope=http://x:1"], {}, f"--worker: worker http://x:1: {NOPE}: sglang, "),
        ([], {"DYN_GENERATE_FORMAT": "nope", "DYN_WORKER": "nope=http://x:1"}, "DYN_WORKER: "),
        (["--worker", "x:1"], {}, "--worker: "),
        *((flags, {}, message) for flags, message in CLASHES.items()),
    ],
)
def test_start_up_error_exits_2_with_one_line_that_names_every_setting_at_fault(
    flags: Sequence[str], variables: Mapping[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A setting is named by its flag if that was given, else by its variable."""

    def make(settings: Settings) -> int:
        create_app(settings)
        return 0

    monkeypatch.setattr(server, "run", make)
    result = runner.invoke(app, ["serve", *flags], env=variables)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"tito-gateway: {message}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("serve", "--port", "0", "--generate-format", "nosuch"), 2, "--generate-format"),
        (("serve", "--host", "127.0.0.1", "--port", "TAKEN"), 1, "in use"),
        (("demo", "--port", "TAKEN"), 1, "in use"),
        (("sim", "vllm", "--port", "TAKEN"), 1, "in use"),
    ],
)
def test_process_that_cannot_start_says_why_in_one_line(
    arguments: Sequence[str], status: int, message: str
) -> None:
    """Without a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = run(*(port if each == "TAKEN" else each for each in arguments))
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (status, "", 1)
    assert message in result.stderr


def test_version_is_that_of_the_distribution() -> None:
    shown = version("tito-gateway") + " (compiled)" * COMPILED + "\n"
    assert runner.invoke(app, ["version"]).output == shown
    assert runner.invoke(app, ["--version"]).output == shown
    assert run("version").stdout == shown


def test_every_option_of_a_simulated_engine_is_a_flag() -> None:
    assert [f.name for f in fields(SimConfig) if flag_of(f.name) not in help_of("sim", "sglang")] == []


def test_simulated_engine_prints_its_url_and_ends_with_its_parent() -> None:
    with running("sim", "vllm", "--model", "tiny", "--end-with-stdin") as sim:
        url = line_with(sim.stdout, "listening on ").split()[-1]
        assert not refuses(int(url.rsplit(":", 1)[1]))
        assert sim.stdin is not None
        sim.stdin.close()
        assert sim.wait(PATIENCE) == 0


def test_closed_standard_files_are_not_replaced_by_sockets() -> None:
    """A socket with the number of standard error would be sent the log, and the process would abort."""
    port = free_port()
    line = ["sh", "-c", 'exec "$0" "$@" >&- 2>&-', sys.executable, "-m", "gateway"]
    with subprocess.Popen([*line, "sim", "sglang", "--port", str(port)]) as process:
        try:
            while refuses(port):
                assert process.poll() is None
                time.sleep(0.02)
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()
