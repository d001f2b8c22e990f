"""Every setting, where it comes from and what it may be.

Owns: defaults, limits, and the text a user sees for a bad value. Must never enter: what a setting does, a
check that needs the fleet or the installed formats.

A field's metadata is the whole truth about it: flags, help and docs are made from ``Settings.model_fields``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import Field, PrivateAttr, SecretStr, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from gateway import variables
from gateway.fleet.worker import Address, BadWorkerUrl
from gateway.telemetry.buckets import MOST_BUCKETS, Buckets, log_spaced

MEGABYTE = 1024 * 1024

_PATH = re.compile(r"(/[^\s:*?#/][^\s?#/]*)+")
_METRIC_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_NAMED_WORKER = re.compile(r"(?P<format>[a-z][a-z0-9_-]*)=(?P<url>.*)")
_HISTOGRAMS = ("request_duration", "input_sequence", "output_sequence", "ttft", "itl")


class SettingsError(Exception):
    """Some value is bad; the message is one line and names the variable or flag it came from."""


@dataclass(frozen=True, slots=True)
class WorkerEntry:
    """A worker a user named: its URL and, if they said so, the format it speaks."""

    url: str
    format: str | None = None

    @classmethod
    def parse(cls, text: str) -> WorkerEntry:
        """Read ``URL`` or ``FORMAT=URL``. Raises BadWorkerUrl."""
        match = _NAMED_WORKER.fullmatch(text)
        entry = cls(match["url"], match["format"]) if match else cls(text)
        Address.parse(entry.url)
        return entry


def _setting(variable: str, default: Any, text: str, **limits: Any) -> Any:
    return Field(default, description=text, json_schema_extra={"variable": variable}, **limits)


def _low(histogram: str, default: float, of: str) -> Any:
    return _setting(f"DYN_METRICS_{histogram}_MIN", default, f"{of}: where its buckets start", gt=0)


def _high(histogram: str, default: float, of: str) -> Any:
    return _setting(f"DYN_METRICS_{histogram}_MAX", default, f"{of}: its largest bucket", gt=0)


def _count(histogram: str, default: int, of: str) -> Any:
    return _setting(
        f"DYN_METRICS_{histogram}_COUNT", default, f"{of}: how many buckets", ge=2, le=MOST_BUCKETS
    )


class _Variables(PydanticBaseSettingsSource):
    """The environment, each field under its own variable; an empty variable counts as unset."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        return variables.environment().get(variable_of(field)) or None, field_name, False

    def __call__(self) -> dict[str, Any]:
        fields = self.settings_cls.model_fields.items()
        values = {name: self.get_field_value(field, name)[0] for name, field in fields}
        return {name: value for name, value in values.items() if value is not None}


class Settings(BaseSettings):
    """All settings, checked and frozen. Arguments win over the environment."""

    #: Fields whose value was given by a flag.
    _flags: frozenset[str] = PrivateAttr(frozenset())

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False, protected_namespaces=()
    )

    host: str = _setting("DYN_HTTP_HOST", "0.0.0.0", "Address to listen on", min_length=1)
    port: int = _setting("DYN_HTTP_PORT", 8000, "Port to listen on; 0 takes a free one", ge=0, le=65535)
    processes: int = _setting(
        "DYN_HTTP_PROCESSES",
        1,
        "Processes that serve the port together, for hosts where one core is not enough",
        ge=1,
        le=256,
    )
    worker: tuple[str, ...] = _setting(
        "DYN_WORKER",
        (),
        "A worker's URL, or FORMAT=URL to say which format it speaks (else it is probed); repeat the flag or "
        "separate by commas",
    )
    worker_api_key: SecretStr | None = _setting(
        "DYN_WORKER_API_KEY", None, "Key sent to every worker as a bearer token, in place of the client's own"
    )
    router_mode: Literal["least_in_flight", "round_robin", "random"] = _setting(
        "DYN_ROUTER_MODE", "least_in_flight", "How a worker is picked: least_in_flight, round_robin, random"
    )
    generate_format: str = _setting(
        "DYN_GENERATE_FORMAT", "sglang", "Name of the format that serves /generate", min_length=1
    )
    sglang_stream_mode: Literal["engine", "incremental", "cumulative"] = _setting(
        "DYN_SGLANG_STREAM_MODE",
        "engine",
        "What SGLang's stream events hold, whatever the workers' own flag: engine (as they send it), "
        "incremental (what is new), cumulative (all so far)",
    )
    passthrough_engine_errors: bool = _setting(
        "DYN_PASSTHROUGH_ENGINE_ERRORS",
        False,
        "Pass errors of 500 and over as an engine sent them; else the paths of its files are cut from them, "
        "be it the body of a reply or an event of a stream",
    )
    vocab_size: int | None = _setting(
        "DYN_VOCAB_SIZE",
        None,
        "Number of tokens in the vocabulary of the fleet's model: requests with ids outside of it are "
        "refused, as they kill engines, and no engine tells its size; unset: not checked",
        ge=1,
    )
    poison_window_seconds: float = _setting(
        "DYN_POISON_WINDOW_SECONDS",
        60.0,
        "A request is refused once two workers died within so many seconds while they ran it; 0: never",
        ge=0,
    )
    body_limit_mb: int = _setting(
        "DYN_HTTP_BODY_LIMIT_MB", 512, "Largest request body, in MiB; a larger one is a 413", ge=1
    )
    sse_keep_alive_interval_ms: int | None = _setting(
        "DYN_HTTP_SSE_KEEP_ALIVE_INTERVAL_MS",
        None,
        "Silence in a stream after which a comment is sent to the client, in milliseconds; 0 or unset: never",
        ge=1,
    )
    connect_timeout_secs: float = _setting(
        "DYN_CONNECT_TIMEOUT_SECS", 5.0, "How long connecting to a worker may take, in seconds", gt=0
    )
    probe_interval_secs: float = _setting(
        "DYN_PROBE_INTERVAL_SECS", 5.0, "Time between two probes of a worker, in seconds", gt=0
    )
    graceful_shutdown_timeout_secs: float = _setting(
        "DYN_HTTP_GRACEFUL_SHUTDOWN_TIMEOUT_SECS",
        180.0,
        "How long running requests may go on after SIGTERM, in seconds; a second signal ends them at once",
        ge=0,
    )
    listen_backlog: int = _setting(
        "DYN_HTTP_LISTEN_BACKLOG", 4096, "Connections that may wait to be accepted", ge=1
    )
    sglang_generate_path: str = _setting(
        "DYN_HTTP_SVC_SGLANG_GENERATE_PATH",
        "/generate",
        "Path of the endpoint whose format DYN_GENERATE_FORMAT names",
    )
    vllm_generate_path: str = _setting(
        "DYN_HTTP_SVC_VLLM_GENERATE_PATH", "/inference/v1/generate", "Path of the vLLM generate endpoint"
    )
    metrics_path: str = _setting("DYN_HTTP_SVC_METRICS_PATH", "/metrics", "Path of the Prometheus metrics")
    health_path: str = _setting("DYN_HTTP_SVC_HEALTH_PATH", "/health", "Path of the health report")
    live_path: str = _setting("DYN_HTTP_SVC_LIVE_PATH", "/live", "Path of the liveness answer")
    models_path: str = _setting("DYN_HTTP_SVC_MODELS_PATH", "/v1/models", "Path of the list of models")
    log_level: Literal["critical", "error", "warning", "info", "debug"] = _setting(
        "DYN_LOG_LEVEL", "info", "Least severe log lines to write: critical, error, warning, info, debug"
    )
    access_log: bool = _setting(
        "DYN_ACCESS_LOG", True, "Write one line to standard output for each request of a generate endpoint"
    )
    access_log_format: Literal["json", "text"] = _setting(
        "DYN_ACCESS_LOG_FORMAT", "json", "Shape of an access log line: json, text"
    )
    metrics_prefix: str = _setting(
        "DYN_METRICS_PREFIX", "dynamo_frontend", "First part of the name of every metric"
    )
    metrics_request_duration_min: float = _low("REQUEST_DURATION", 1.0, "Request duration, seconds")
    metrics_request_duration_max: float = _high("REQUEST_DURATION", 512.0, "Request duration, seconds")
    metrics_request_duration_count: int = _count("REQUEST_DURATION", 10, "Request duration")
    metrics_input_sequence_min: float = _low("INPUT_SEQUENCE", 50.0, "Prompt length, tokens")
    metrics_input_sequence_max: float = _high("INPUT_SEQUENCE", 128000.0, "Prompt length, tokens")
    metrics_input_sequence_count: int = _count("INPUT_SEQUENCE", 12, "Prompt length")
    metrics_output_sequence_min: float = _low("OUTPUT_SEQUENCE", 50.0, "Reply length, tokens")
    metrics_output_sequence_max: float = _high("OUTPUT_SEQUENCE", 32000.0, "Reply length, tokens")
    metrics_output_sequence_count: int = _count("OUTPUT_SEQUENCE", 10, "Reply length")
    metrics_ttft_min: float = _low("TTFT", 0.001, "Time to first token, seconds")
    metrics_ttft_max: float = _high("TTFT", 480.0, "Time to first token, seconds")
    metrics_ttft_count: int = _count("TTFT", 18, "Time to first token")
    metrics_itl_min: float = _low("ITL", 0.001, "Inter-token latency, seconds")
    metrics_itl_max: float = _high("ITL", 2.0, "Inter-token latency, seconds")
    metrics_itl_count: int = _count("ITL", 13, "Inter-token latency")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, _Variables(settings_cls)

    @field_validator("worker", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        entries = (value,) if isinstance(value, str) else value
        if not isinstance(entries, list | tuple) or not all(isinstance(entry, str) for entry in entries):
            return value
        return tuple(part.strip() for entry in entries for part in entry.split(",") if part.strip())

    @field_validator("worker")
    @classmethod
    def _usable_urls(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        seen: set[str] = set()
        for entry in entries:
            try:
                url = WorkerEntry.parse(entry).url
            except BadWorkerUrl as error:
                raise ValueError(str(error)) from error
            if url in seen:
                raise ValueError(f"{url!r} is given twice; without FORMAT= every format is tried")
            seen.add(url)
        return entries

    @field_validator("worker_api_key")
    @classmethod
    def _fits_a_header(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None and re.fullmatch(r"[!-~]+", key.get_secret_value()) is None:
            raise ValueError("must be printable ASCII without spaces")
        return key

    @field_validator("router_mode", "sglang_stream_mode", "log_level", "access_log_format", mode="before")
    @classmethod
    def _spelling(cls, value: object) -> object:
        return value.strip().lower().replace("-", "_") if isinstance(value, str) else value

    @field_validator("sse_keep_alive_interval_ms", mode="before")
    @classmethod
    def _zero_is_off(cls, value: object) -> object:
        return None if value in (0, "0") else value

    @field_validator(
        "sglang_generate_path",
        "vllm_generate_path",
        "metrics_path",
        "health_path",
        "live_path",
        "models_path",
    )
    @classmethod
    def _is_path(cls, path: str) -> str:
        if _PATH.fullmatch(path) is None:
            raise ValueError(
                f"{path!r} must start with '/' and be a plain path: no empty segment, query or space, "
                "and no segment that starts with ':' or '*'"
            )
        return path

    @field_validator("metrics_prefix")
    @classmethod
    def _is_metric_name(cls, prefix: str) -> str:
        if _METRIC_NAME.fullmatch(prefix) is None:
            raise ValueError("must be letters, digits, '_' and ':', and not start with a digit")
        return prefix.rstrip("_")

    @model_validator(mode="after")
    def _bounds_exist(self) -> Self:
        # Here, not on first use: a bad bucket is a start-up error.
        for name in _HISTOGRAMS:
            try:
                self._bounds(name)
            except ValueError as error:
                stem = f"DYN_METRICS_{name.upper()}"
                raise ValueError(f"{stem}_MIN, {stem}_MAX: {error}") from error
        return self

    def _bounds(self, name: str) -> tuple[float, ...]:
        low, high, count = (getattr(self, f"metrics_{name}_{part}") for part in ("min", "max", "count"))
        return log_spaced(low, high, count)

    def source_of(self, name: str) -> str:
        """What gave the field ``name`` its value, as its user spells it: the flag, or else the variable."""
        return _source(name, self._flags)

    def sources_with(self, values: Collection[str]) -> str:
        """The same for all fields that have one of ``values``."""
        fields = type(self).model_fields
        return ", ".join(self.source_of(name) for name in fields if getattr(self, name) in values)

    @property
    def buckets(self) -> Buckets:
        """Bounds of all histograms."""
        return Buckets(**{name: self._bounds(name) for name in _HISTOGRAMS})

    @property
    def workers(self) -> tuple[WorkerEntry, ...]:
        """``worker``, taken apart."""
        return tuple(WorkerEntry.parse(entry) for entry in self.worker)

    @property
    def worker_authorization(self) -> bytes | None:
        """Value of the ``Authorization`` header for every worker; None: the client's own is passed on."""
        key = self.worker_api_key
        return None if key is None else b"Bearer " + key.get_secret_value().encode()

    @property
    def format_options(self) -> Mapping[str, str]:
        """Settings of single formats, by field name, as text; those at their default are left out."""
        options = {
            name: getattr(self, name)
            for name in ("sglang_stream_mode", "passthrough_engine_errors", "vocab_size")
            if getattr(self, name) != type(self).model_fields[name].default
        }
        return {
            name: str(value).lower() if isinstance(value, bool) else str(value)
            for name, value in options.items()
        }

    @property
    def body_limit(self) -> int:
        """Largest request body, in bytes."""
        return self.body_limit_mb * MEGABYTE


def load_settings(flags: Mapping[str, Any] | None = None) -> Settings:
    """Settings from ``flags`` (by field name; None = not given), then the environment, then defaults.

    Raises SettingsError.
    """
    given = {name: value for name, value in (flags or {}).items() if value is not None}
    try:
        settings = Settings(**given)
        settings._flags = frozenset(given)
        return settings
    except ValidationError as error:
        raise SettingsError("; ".join(_complaints(error, given))) from None


def _complaints(error: ValidationError, flags: Mapping[str, Any]) -> Iterable[str]:
    for detail in error.errors(include_url=False, include_input=False):
        text = detail["msg"].removeprefix("Value error, ")
        name = str(detail["loc"][0]) if detail["loc"] else ""
        if name in Settings.model_fields:
            text = f"{_source(name, flags)}: {text}"
        yield " ".join(text.split())


def _source(name: str, flags: Collection[str]) -> str:
    return flag_of(name) if name in flags else variable_of(Settings.model_fields[name])


def variable_of(field: FieldInfo) -> str:
    """Name of the environment variable of one of ``Settings.model_fields``."""
    extra = field.json_schema_extra
    assert isinstance(extra, dict), "every field is made by _setting"
    return str(extra["variable"])


def flag_of(name: str) -> str:
    """Command-line flag of the field ``name``."""
    return f"--{name.replace('_', '-')}"


def ignored_variables() -> str | None:
    """One line about the ``DYN_*`` variables in the environment that do nothing, or None."""
    return variables.ignored({variable_of(field) for field in Settings.model_fields.values()})
