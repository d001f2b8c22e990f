"""Settings: their sources, and the error for each bad value."""

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
    flag_of,
    ignored_variables,
    load_settings,
    variable_of,
)

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
    assert all(re.fullmatch(r"DYN_[A-Z_]+", variable) for variable in variables)
    assert all(field.description for field in Settings.model_fields.values())


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_used_by_something(name: str) -> None:
    """A setting without effect would mislead its user."""
    properties = {
        "worker": "workers",
        "body_limit_mb": "body_limit",
        "worker_api_key": "worker_authorization",
        "allow_worker_url": "worker_patterns",
        "endpoint": "endpoints",
        "sglang_generate_path": "generate_path",
        "vllm_generate_path": "format_paths",
        "sglang_stream_mode": "format_options",
        "passthrough_engine_errors": "format_options",
        "vocab_size": "format_options",
        "event_limit_mb": "format_options",
        "header_limit_kb": "head_limit",
        "header_limit_lines": "head_limit",
        "first_byte_timeout_secs": "timeouts",
        "idle_timeout_secs": "timeouts",
        "request_timeout_secs": "timeouts",
    }
    used = properties.get(name, name)
    if re.search("^metrics_.*_(min|max|count)$", name):
        used = "bucket_bounds"
    sources = [path.read_text() for path in PACKAGE.rglob("*.py") if path.parent.name != "settings"]
    assert any(re.search(rf"settings\.{used}\b", source) for source in sources)


def test_variable_is_read_under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_HTTP_PORT", "9001")
    monkeypatch.setenv("DYN_ACCESS_LOG", "off")
    assert Settings().port == 9001
    assert Settings().access_log is False


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


@pytest.mark.parametrize("variable", ["HTTP_PORT", "PORT", "DYN_PORT", "dyn_http_port"])
def test_variable_of_another_name_is_not_read(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "9001")
    assert Settings().port == 8000


def test_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_HTTP_PORT", "")
    monkeypatch.setenv("DYN_WORKER", "")
    assert Settings().port == 8000
    assert Settings().worker == ()


def test_flag_overrides_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_HTTP_PORT", "9001")
    assert load_settings({"port": "9002", "host": None}).port == 9002


def test_flag_overrides_even_a_bad_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_HTTP_PORT", "nonsense")
    assert load_settings({"port": "9002"}).port == 9002


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        Settings().port = 1


def test_unknown_argument_is_refused() -> None:
    with pytest.raises(ValidationError):
        Settings.model_validate({"prot": 1})


def test_bad_flag_names_the_flag_in_one_line() -> None:
    assert error_text(port="x").startswith("--port: ")
    assert "\n" not in error_text(port="x")


def test_overload_factor_that_excludes_all_workers_is_refused() -> None:
    assert error_text(router_overload_factor="0.9").startswith(
        "--router-overload-factor: must be 0, or at least 1"
    )
    assert Settings(router_overload_factor=0).router_overload_factor == 0


def test_bad_variable_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_PROBE_INTERVAL_SECS", "soon")
    assert error_text().startswith("DYN_PROBE_INTERVAL_SECS: ")


def test_all_bad_values_are_reported_at_once() -> None:
    text = error_text(port="x", probe_interval_secs="-1")
    assert "--port: " in text
    assert "--probe-interval-secs: " in text


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", "65536"),
        ("port", "-1"),
        ("host", ""),
        ("body_limit_mb", "0"),
        ("connect_timeout_secs", "nan"),
        ("connect_timeout_secs", "0"),
        ("probe_interval_secs", "inf"),
        ("graceful_shutdown_timeout_secs", "-1"),
        ("sse_keep_alive_interval_ms", "-5"),
        ("router_mode", "kv"),
        ("log_level", "loud"),
        ("access_log", "perhaps"),
        ("access_log_format", "xml"),
        ("metrics_prefix", "9lives"),
        ("metrics_prefix", "a-b"),
        ("metrics_itl_count", "1"),
        ("metrics_itl_count", "513"),
        ("metrics_ttft_min", "0"),
        ("health_path", "health"),
        ("live_path", "/a/:b"),
        ("models_path", "/a/*"),
        ("metrics_path", "/a b"),
        ("metrics_path", "/a?b"),
        ("metrics_path", "/a//b"),
        ("metrics_path", "/%41"),
        ("metrics_path", "/a/%41"),
        ("metrics_path", "/\u00e9"),
        ("listen_backlog", "2147483648"),
        ("sglang_generate_path", "generate"),
        ("worker", ["127.0.0.1:30000"]),
        ("worker", ["http://127.0.0.1:port"]),
        ("worker", ["ftp://127.0.0.1"]),
        ("worker", ["http://a:1", "http://a:1"]),
        ("worker", ["http://a:1,fmt=http://a:1"]),
        ("discovery_backend", "consul"),
        ("etcd_endpoints", "127.0.0.1:2379"),
        ("etcd_endpoints", ["http://user:word@a:1"]),
        ("etcd_prefix", "/"),
        ("etcd_prefix", "workers"),
        ("etcd_prefix", "/a b"),
    ],
)
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


def test_zero_switches_keep_alive_comments_off() -> None:
    assert load_settings({"sse_keep_alive_interval_ms": "0"}).sse_keep_alive_interval_ms is None
    assert load_settings({"sse_keep_alive_interval_ms": "250"}).sse_keep_alive_interval_ms == 250


@pytest.mark.parametrize("spelling", ["round-robin", "round_robin", "Round-Robin"])
def test_router_mode_is_accepted_in_either_spelling(spelling: str) -> None:
    assert load_settings({"router_mode": spelling}).router_mode == "round_robin"


def test_workers_come_from_a_comma_separated_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYN_WORKER", "http://a:1, sglang=http://[::1]:2/base ,")
    assert Settings().workers == (
        WorkerEntry("http://a:1"),
        WorkerEntry("http://[::1]:2/base", "sglang"),
    )


def test_workers_come_from_repeated_flags() -> None:
    settings = load_settings({"worker": ["http://a:1", "http://b:1"]})
    assert [entry.url for entry in settings.workers] == ["http://a:1", "http://b:1"]


def test_key_is_never_shown() -> None:
    settings = load_settings({"worker_api_key": "hunter2"})
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in str(settings)
    assert "hunter2" not in settings.model_dump_json()


@pytest.mark.parametrize("key", ["hun ter", "hunter\n", "hünter"])
def test_key_that_no_header_can_hold_is_refused_without_being_shown(key: str) -> None:
    text = error_text(worker_api_key=key)
    assert text.startswith("--worker-api-key: ")
    assert key not in text


def test_credentials_in_a_worker_url_are_refused_without_being_shown() -> None:
    text = error_text(worker=["http://me:hunter2@a:1"])
    assert text.startswith("--worker: ")
    assert "hunter2" not in text


def test_known_variables_cause_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    for field in Settings.model_fields.values():
        monkeypatch.setenv(variable_of(field), "1")
    assert ignored_variables() is None


def test_options_of_formats_are_only_those_that_were_chosen() -> None:
    assert Settings().format_options == {}
    chosen = Settings(sglang_stream_mode="CUMULATIVE", passthrough_engine_errors=True)  # type: ignore[arg-type]
    assert chosen.format_options == {"sglang_stream_mode": "cumulative", "passthrough_engine_errors": "true"}
    assert load_settings({"vocab_size": "32000"}).format_options == {"vocab_size": "32000"}
    assert "--vocab-size" in error_text(vocab_size="0")


def test_invalid_stream_mode_and_window_are_refused_by_name() -> None:
    assert "--sglang-stream-mode" in error_text(sglang_stream_mode="sometimes")
    assert "--poison-window-seconds" in error_text(poison_window_seconds="-1")
