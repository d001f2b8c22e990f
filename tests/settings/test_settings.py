"""Settings: their sources, the error for each bad value, and what is said of variables that do nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

import gateway
from gateway.settings import (
    Settings,
    SettingsError,
    WorkerEntry,
    environment,
    flag_of,
    ignored_variables,
    load_settings,
    variable_of,
)
from gateway.settings.buckets import log_spaced

PACKAGE = Path(gateway.__file__).parent


def error_text(**flags: object) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(flags)
    return str(caught.value)


def test_defaults_are_those_of_the_frontend_whose_names_are_used() -> None:
    settings = Settings()
    assert (settings.host, settings.port, settings.listen_backlog) == ("0.0.0.0", 8000, 4096)
    assert (settings.metrics_prefix, settings.models_path) == ("dynamo_frontend", "/v1/models")
    assert settings.generate_format == "sglang"
    assert settings.body_limit == 512 * 1024 * 1024


@pytest.mark.parametrize("name", ["first_byte_timeout_secs", "idle_timeout_secs", "request_timeout_secs"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("-1", "'-1' is not a number of seconds"),
        ("inf", "'inf' is not a number of seconds"),
        ("5s", "'5s' is not a number of seconds"),
        ("/a=", "'' is not a number of seconds"),
        ("a=5", "'a' must start with '/' and be a plain path"),
        ("1,2", "two values for all routes are given"),
        ("/a=1,/a=2", "'/a' is given twice"),
    ],
)
def test_invalid_timeout_is_refused_with_the_reason(name: str, value: str, message: str) -> None:
    assert error_text(**{name: value}) == f"{flag_of(name)}: {message}"


def test_timeouts_of_a_route_are_its_own_or_those_of_all() -> None:
    """0 is no limit, for one route as for all."""
    settings = load_settings(
        {
            "first_byte_timeout_secs": ["9", "/a=2.5,/b=0"],
            "idle_timeout_secs": "0",
            "request_timeout_secs": "/a=.5",
        }
    )
    assert settings.timeouts("/a") == (2.5, None, 0.5)
    assert settings.timeouts("/b") == (None, None, None)
    assert settings.timeouts("/c") == (9.0, None, None)


@pytest.mark.parametrize("name", ["max_in_flight", "max_in_flight_per_worker", "max_connections"])
def test_limit_below_one_per_process_is_refused(name: str) -> None:
    assert "at least DYN_HTTP_PROCESSES, 4" in error_text(**{name: "3", "processes": "4"})
    settings = load_settings({name: "7", "processes": "3"})
    assert settings.share(getattr(settings, name)) == 2


def test_every_setting_has_a_variable_of_its_own_and_a_help_text() -> None:
    variables = [variable_of(field) for field in Settings.model_fields.values()]
    assert len(set(variables)) == len(variables)
    assert all(re.fullmatch(r"DYN_[A-Z0-9_]+", variable) for variable in variables)
    assert all(field.description for field in Settings.model_fields.values())


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_used_by_something(name: str) -> None:
    read_by = {
        "workers": ["worker"],
        "body_limit": ["body_limit_mb"],
        "worker_authorization": ["worker_api_key"],
        "worker_patterns": ["allow_worker_url"],
        "endpoints": ["endpoint"],
        "generate_path": ["sglang_generate_path"],
        "format_paths": ["vllm_generate_path"],
        "generate_switches": ["sglang_enable_generate", "vllm_enable_inference_v1_generate"],
        "format_options": ["sglang_stream_mode", "passthrough_engine_errors", "vocab_size", "event_limit_mb"],
        "head_limit": ["header_limit_kb", "header_limit_lines"],
        "timeouts": ["first_byte_timeout_secs", "idle_timeout_secs", "request_timeout_secs"],
    }
    [used] = [reader for reader, names in read_by.items() if name in names] or [name]
    if re.search("^metrics_.*_(min|max|count)$", name):
        used = "bucket_bounds"
    sources = [path.read_text() for path in PACKAGE.rglob("*.py") if path.parent.name != "settings"]
    assert any(re.search(rf"settings\.{used}\b", source) for source in sources)


@pytest.mark.parametrize(
    ("name", "variable", "older"),
    [
        ("queue_seconds", "DYN_QUEUE_SECONDS", "DYN_HOLD_SECONDS"),
        ("queue_requests", "DYN_QUEUE_REQUESTS", "DYN_HOLD_REQUESTS"),
        ("queue_bytes", "DYN_QUEUE_BYTES", "DYN_HOLD_BYTES"),
    ],
)
def test_older_name_of_a_setting_is_still_read(
    name: str, variable: str, older: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(older, "-1")
    assert error_text().startswith(f"{older}: ")
    monkeypatch.setenv(older, "7")
    assert getattr(load_settings(), name) == 7 and not ignored_variables()
    assert getattr(load_settings({name: "8"}), name) == 8
    monkeypatch.setenv(variable, "9")
    assert error_text().startswith(f"{variable}, {older}: ")


@pytest.mark.parametrize(
    ("variables", "flags", "port"),
    [
        ({"DYN_HTTP_PORT": "9001"}, {}, 9001),
        ({"DYN_HTTP_PORT": "9001"}, {"port": "9002", "host": None}, 9002),
        ({"DYN_HTTP_PORT": "nonsense"}, {"port": "9002"}, 9002),
        ({"DYN_HTTP_PORT": "", "DYN_WORKER": ""}, {}, 8000),
        *(({name: "9001"}, {}, 8000) for name in ("HTTP_PORT", "PORT", "DYN_PORT", "dyn_http_port")),
    ],
    ids=str,
)
def test_flag_comes_before_the_variable_of_the_exact_name_and_an_empty_one_is_unset(
    variables: dict[str, str], flags: dict[str, str], port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings = load_settings(flags)
    assert (settings.port, settings.worker) == (port, ())


def test_settings_cannot_be_changed_and_have_no_unknown_ones() -> None:
    with pytest.raises(ValidationError):
        Settings().port = 1
    with pytest.raises(ValidationError):
        Settings.model_validate({"prot": 1})


def test_all_bad_values_are_reported_at_once_in_one_line_each_by_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DYN_PROBE_INTERVAL_SECS", "soon")
    text = error_text(port="x", idle_timeout_secs="-1")
    names = [error.partition(": ")[0] for error in text.split("; ")]
    assert names == ["DYN_PROBE_INTERVAL_SECS", "--port", "--idle-timeout-secs"] and "\n" not in text


#: Name -> values that it cannot have.
BAD: dict[str, list[object]] = {
    "port": ["65536", "-1"],
    "host": [""],
    "body_limit_mb": ["0"],
    "connect_timeout_secs": ["nan", "0"],
    "probe_interval_secs": ["inf"],
    "graceful_shutdown_timeout_secs": ["-1"],
    "sse_keep_alive_interval_ms": ["-5"],
    "router_mode": ["kv"],
    "router_overload_factor": ["0.9"],
    "log_level": ["loud"],
    "access_log": ["perhaps"],
    "access_log_format": ["xml"],
    "metrics_prefix": ["9lives", "a-b"],
    "metrics_itl_count": ["1", "513"],
    "metrics_ttft_min": ["0"],
    "health_path": ["health"],
    "live_path": ["/a/:b"],
    "models_path": ["/a/*"],
    "metrics_path": ["/a b", "/a?b", "/a//b", "/%41", "/a/%41", "/\u00e9"],
    "listen_backlog": ["2147483648"],
    "sglang_generate_path": ["generate"],
    "vocab_size": ["0"],
    "sglang_stream_mode": ["sometimes"],
    "poison_window_seconds": ["-1"],
    "worker": [
        *(["127.0.0.1:30000"], ["http://127.0.0.1:port"], ["ftp://127.0.0.1"]),
        *(["http://a:1", "http://a:1"], ["http://a:1,fmt=http://a:1"]),
    ],
    "endpoint": [[value] for value in ("/a", "/a=", "a/b=vllm", "/a?b=vllm", "=vllm", "/a=x,/a=y", "x,x")],
    "discovery_backend": ["consul"],
    "etcd_endpoints": ["127.0.0.1:2379", ["http://user:word@a:1"]],
    "etcd_prefix": ["/", "workers", "/a b"],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in BAD for value in BAD[name]])
def test_bad_value_is_refused_by_name(name: str, value: object) -> None:
    assert error_text(**{name: value}).startswith(f"{flag_of(name)}: ")


def test_bad_buckets_name_their_variables() -> None:
    text = error_text(metrics_ttft_min="5", metrics_ttft_max="1")
    assert text.startswith("DYN_METRICS_TTFT_MIN, DYN_METRICS_TTFT_MAX: ")


@pytest.mark.parametrize(
    ("given", "variable"),
    [
        ({"discovery_backend": "file"}, "DYN_DISCOVERY_FILE"),
        ({"etcd_user": "u"}, "DYN_ETCD_PASSWORD"),
        ({"etcd_password": "p"}, "DYN_ETCD_USER"),
        ({"etcd_key_file": "/a"}, "DYN_ETCD_CERT_FILE"),
    ],
)
def test_setting_that_needs_another_one_names_it(given: dict[str, str], variable: str) -> None:
    assert variable in error_text(**given)


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("sse_keep_alive_interval_ms", "0", None),
        ("sse_keep_alive_interval_ms", "250", 250),
        ("router_overload_factor", "0", 0),
        *(("router_mode", given, "round_robin") for given in ("round-robin", "round_robin", "Round-Robin")),
        ("access_log", "off", False),
    ],
)
def test_value_is_read_in_any_spelling(name: str, given: object, value: object) -> None:
    assert getattr(load_settings({name: given}), name) == value


def test_worker_that_is_named_must_be_allowed_as_well() -> None:
    allowed = {"allow_worker_url": "https://gpu-*.pool,10.1.0.0/16"}
    assert load_settings({"worker": "https://gpu-1.pool:30000", **allowed}).worker
    assert error_text(worker="http://10.0.0.1:1", **allowed).startswith(
        "DYN_WORKER: 'http://10.0.0.1:1' matches no pattern of"
    )


def test_workers_come_from_a_comma_separated_variable_or_from_repeated_flags(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DYN_WORKER", "http://a:1, sglang=http://[::1]:2/base ,")
    assert Settings().workers == (WorkerEntry("http://a:1"), WorkerEntry("http://[::1]:2/base", "sglang"))
    assert load_settings({"worker": ["http://b:1", "http://c:1"]}).worker == ("http://b:1", "http://c:1")


@pytest.mark.parametrize(
    ("name", "given", "secret"),
    [
        *(("worker_api_key", key, key) for key in ("hun ter", "hunter\n", "hünter")),
        *((name, "hun ter", "hun ter") for name in ("api_key", "admin_api_key")),
        ("worker", ["http://me:hunter2@a:1"], "hunter2"),
    ],
)
def test_secret_that_cannot_be_used_is_refused_without_being_shown(
    name: str, given: object, secret: str
) -> None:
    text = error_text(**{name: given})
    assert text.startswith(f"{flag_of(name)}: ")
    assert secret not in text


def test_known_variables_cause_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in Settings.model_fields.values():
        monkeypatch.setenv(variable_of(field), "1")
    assert ignored_variables() is None


def test_options_of_formats_are_only_those_that_were_chosen() -> None:
    assert Settings().format_options == {}
    chosen = Settings(sglang_stream_mode="CUMULATIVE", passthrough_engine_errors=True)  # type: ignore[arg-type]
    assert chosen.format_options == {"sglang_stream_mode": "cumulative", "passthrough_engine_errors": "true"}
    assert load_settings({"vocab_size": "32000"}).format_options == {"vocab_size": "32000"}


KNOWN = {"DYN_HTTP_PORT"}


def test_environment_is_read_as_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_ODD", "3")
    assert environment.variables()["DYN_ODD"] == "3"
    monkeypatch.delenv("DYN_ODD")
    assert "DYN_ODD" not in environment.variables()


@pytest.mark.parametrize(
    ("names", "line"),
    [
        (["DYN_WORKERS", "DYN_HTTP_PROT", "DYN_HTTP_PORT", "OTHER"], "unknown: DYN_HTTP_PROT, DYN_WORKERS"),
        (["DYN_MIGRATION_LIMIT", "DYN_ODD"], "unknown: DYN_ODD; not supported here: DYN_MIGRATION_LIMIT"),
        (["DYN_HTTP_PORT"], None),
    ],
)
def test_variables_that_do_nothing_are_named_in_one_line_those_of_another_frontend_apart(
    names: list[str], line: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in names:
        monkeypatch.setenv(name, "1")
    assert environment.ignored_variables(KNOWN) == (line and f"ignored environment variables: {line}")


@pytest.mark.parametrize(
    ("low", "high", "count", "bounds"),
    [
        (1, 512, 10, (0, 2, 4, 8, 16, 32, 64, 130, 260, 510)),
        (50, 128000, 12, (0, 100, 210, 430, 870, 1800, 3600, 7400, 15000, 31000, 63000, 130000)),
    ],
)
def test_bounds_are_log_spaced_with_two_digits(
    low: float, high: float, count: int, bounds: tuple[float, ...]
) -> None:
    assert log_spaced(low, high, count) == bounds


def test_bounds_that_coincide_are_given_once() -> None:
    bounds = log_spaced(1, 1.1, 100)
    assert len(set(bounds)) == len(bounds)
    assert list(bounds) == sorted(bounds)


@pytest.mark.parametrize(
    ("low", "high", "count"),
    [(0, 1, 5), (2, 1, 5), (1, 1, 5), (1, float("inf"), 5), (float("nan"), 1, 5), (1, 2, 1), (1, 2, 513)],
)
def test_bounds_that_cannot_exist_are_refused(low: float, high: float, count: int) -> None:
    with pytest.raises(ValueError, match="bound|buckets"):
        log_spaced(low, high, count)
