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
from gateway.fleet.address import Address, BadWorkerUrl
from gateway.fleet.allow import UrlPattern, permitted
from gateway.telemetry.buckets import MOST_BUCKETS, Buckets, log_spaced

MEGABYTE = 1024 * 1024

_PATH = re.compile(r"(/[^\s:*?#/][^\s?#/]*)+")
_DNS_LABEL = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
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


def _server_url(url: str) -> str:
    try:
        Address.parse(url)
    except BadWorkerUrl as error:
        raise ValueError(str(error).replace("a worker's URL", "it").split(";")[0]) from error
    return url


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
    worker_ca_file: str | None = _setting(
        "DYN_WORKER_CA_FILE",
        None,
        "File with the certificates that https workers are trusted by; unset: those of the system",
        min_length=1,
    )
    worker_client_cert: str | None = _setting(
        "DYN_WORKER_CLIENT_CERT",
        None,
        "File with the certificate that is shown to https workers that ask for one",
        min_length=1,
    )
    worker_client_key: str | None = _setting(
        "DYN_WORKER_CLIENT_KEY",
        None,
        "File with the key of that certificate, not encrypted; unset: it is in the file of the certificate",
        min_length=1,
    )
    worker_tls_insecure: bool = _setting(
        "DYN_WORKER_TLS_INSECURE",
        False,
        "Take any certificate of an https worker, whoever it is: for experiments only",
    )
    router_mode: Literal["least_in_flight", "least_loaded", "round_robin", "random"] = _setting(
        "DYN_ROUTER_MODE",
        "least_in_flight",
        "How a worker is picked: least_in_flight, least_loaded, round_robin, random",
    )
    router_overload_factor: float = _setting(
        "DYN_ROUTER_OVERLOAD_FACTOR",
        1.5,
        "Requests with a routing key or session pass over their own worker once it has this many times the "
        "requests of the average worker; 0: they never do",
        ge=0,
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
        "DYN_PROBE_INTERVAL_SECS",
        5.0,
        "Time between two probes of a worker that serves, in seconds; 0: such a worker is not probed",
        ge=0,
    )
    min_weight_version: str | None = _setting(
        "DYN_MIN_WEIGHT_VERSION",
        None,
        "A worker is held until its weight version is at least this (integers) or equal to it (any other)",
        min_length=1,
    )
    hold_seconds: float = _setting(
        "DYN_HOLD_SECONDS",
        0.0,
        "How long a request may wait for a usable worker, in seconds; 0: it is refused at once",
        ge=0,
    )
    hold_requests: int = _setting(
        "DYN_HOLD_REQUESTS", 10000, "How many requests may wait so at once; more are refused at once", ge=1
    )
    hold_bytes: int = _setting(
        "DYN_HOLD_BYTES", 1073741824, "How much memory their bodies may take together, in bytes", ge=1
    )
    control_timeout_secs: float = _setting(
        "DYN_CONTROL_TIMEOUT_SECS",
        1800.0,
        "How long a worker may take for a control call, such as one that loads weights, in seconds; 0: any "
        "time",
        ge=0,
    )
    relay_path: tuple[str, ...] = _setting(
        "DYN_RELAY_PATHS",
        (),
        "One more inference route to pass on to the workers as it is: PATH, or FORMAT=PATH for those of one "
        "format; repeat the flag or separate by commas",
    )
    allow_worker_url: tuple[str, ...] = _setting(
        "DYN_ALLOW_WORKER_URL",
        (),
        "URLs that may be workers, whoever names them, as [SCHEME://]HOST[:PORT], HOST with * or a network "
        "such as 10.0.0.0/8; repeat the flag or separate by commas; unset: any",
    )
    discovery_backend: Literal["memory", "file", "etcd", "kubernetes"] = _setting(
        "DYN_DISCOVERY_BACKEND",
        "memory",
        "Where the list of workers lives: memory (this process), file, etcd, kubernetes",
    )
    discovery_file: str | None = _setting(
        "DYN_DISCOVERY_FILE", None, "The file of workers, with --discovery-backend file", min_length=1
    )
    etcd_endpoints: tuple[str, ...] = _setting(
        "DYN_ETCD_ENDPOINTS",
        (),
        "URLs of the members of the etcd cluster; repeat the flag or separate by commas; unset: "
        "http://127.0.0.1:2379",
    )
    etcd_prefix: str = _setting(
        "DYN_ETCD_PREFIX",
        "/tito-gateway",
        "Under which keys of etcd the workers are; gateways of one fleet have the same, others another one",
    )
    etcd_user: str | None = _setting("DYN_ETCD_USER", None, "User to log in to etcd as", min_length=1)
    etcd_password: SecretStr | None = _setting("DYN_ETCD_PASSWORD", None, "Password of that user")
    etcd_ca_file: str | None = _setting(
        "DYN_ETCD_CA_FILE",
        None,
        "File with the certificates that etcd is trusted by; unset: those of the system",
        min_length=1,
    )
    etcd_cert_file: str | None = _setting(
        "DYN_ETCD_CERT_FILE", None, "File with the certificate that is shown to etcd", min_length=1
    )
    etcd_key_file: str | None = _setting(
        "DYN_ETCD_KEY_FILE",
        None,
        "File with the key of that certificate; unset: it is in the file of the certificate",
        min_length=1,
    )
    kubernetes_resource: Literal["pods", "endpointslices"] = _setting(
        "DYN_KUBERNETES_RESOURCE",
        "pods",
        "Which of Kubernetes' objects are the workers: pods, endpointslices",
    )
    kubernetes_selector: str | None = _setting(
        "DYN_KUBERNETES_SELECTOR",
        None,
        "Labels by which those objects are chosen, as kubectl takes them; for a Service's slices: "
        "kubernetes.io/service-name=NAME",
        min_length=1,
    )
    kubernetes_namespace: str | None = _setting(
        "DYN_KUBERNETES_NAMESPACE", None, "Their namespace, or * for all; unset: the gateway's own"
    )
    kubernetes_port: str | None = _setting(
        "DYN_KUBERNETES_PORT",
        None,
        "Number or name of their port; unset: the only one there is, or of several the one named http",
    )
    kubernetes_scheme: Literal["http", "https"] = _setting(
        "DYN_KUBERNETES_SCHEME", "http", "How they are spoken to where they do not say it: http, https"
    )
    kubernetes_api_url: str | None = _setting(
        "DYN_KUBERNETES_API_URL", None, "URL of the API server; unset: of the cluster the gateway runs in"
    )
    kubernetes_token_file: str | None = _setting(
        "DYN_KUBERNETES_TOKEN_FILE",
        None,
        "File with the token for the API server, read again and again; unset: that of the gateway's pod, and "
        "none with an API URL",
        min_length=1,
    )
    kubernetes_ca_file: str | None = _setting(
        "DYN_KUBERNETES_CA_FILE",
        None,
        "File with the certificates that the API server is trusted by; unset: that of the gateway's pod, and "
        "the system's with an API URL",
        min_length=1,
    )
    graceful_shutdown_timeout_secs: float = _setting(
        "DYN_HTTP_GRACEFUL_SHUTDOWN_TIMEOUT_SECS",
        180.0,
        "How long running requests may go on after SIGTERM, in seconds; a second signal ends them at once",
        ge=0,
    )
    api_key: SecretStr | None = _setting(
        "DYN_API_KEY",
        None,
        "Key that clients must send, as a bearer token, to inference routes; unset, with no file: none",
    )
    api_key_file: str | None = _setting(
        "DYN_API_KEY_FILE",
        None,
        "File with such keys, one a line, # for comments; read again when it changes",
        min_length=1,
    )
    admin_api_key: SecretStr | None = _setting(
        "DYN_ADMIN_API_KEY",
        None,
        "Key that opens all routes and must be sent to control routes; unset, with no file: an API key does",
    )
    admin_api_key_file: str | None = _setting(
        "DYN_ADMIN_API_KEY_FILE",
        None,
        "File with such keys, in the same form, read again as well",
        min_length=1,
    )
    metrics_open: bool = _setting(
        "DYN_METRICS_OPEN", False, "Ask for no key at the metrics; else any key is needed, if there is one"
    )
    ssl_certfile: str | None = _setting(
        "DYN_SSL_CERTFILE",
        None,
        "File with the gateway's certificate and those between it and its authority: clients come by https",
        min_length=1,
    )
    ssl_keyfile: str | None = _setting(
        "DYN_SSL_KEYFILE",
        None,
        "File with the key of that certificate; unset: it is in the file of the certificate",
        min_length=1,
    )
    ssl_keyfile_password: SecretStr | None = _setting(
        "DYN_SSL_KEYFILE_PASSWORD", None, "Password of that key, if it is encrypted"
    )
    ssl_ca_certs: str | None = _setting(
        "DYN_SSL_CA_CERTS",
        None,
        "File with the authorities by which clients are trusted: each must show a certificate of theirs",
        min_length=1,
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

    @field_validator("worker", "allow_worker_url", "relay_path", "etcd_endpoints", mode="before")
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

    @field_validator("allow_worker_url")
    @classmethod
    def _are_patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            UrlPattern.parse(pattern)
        return patterns

    @field_validator("relay_path")
    @classmethod
    def _are_paths(cls, entries: tuple[str, ...]) -> tuple[str, ...]:
        for entry in entries:
            path = entry.rpartition("=")[2]
            if _PATH.fullmatch(path) is None:
                raise ValueError(f"{path!r} must start with '/' and be a plain path")
        return entries

    @field_validator("worker_api_key", "api_key", "admin_api_key")
    @classmethod
    def _fits_a_header(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None and re.fullmatch(r"[!-~]+", key.get_secret_value()) is None:
            raise ValueError("must be printable ASCII without spaces")
        return key

    @field_validator(
        "router_mode",
        "sglang_stream_mode",
        "log_level",
        "access_log_format",
        "discovery_backend",
        "kubernetes_resource",
        "kubernetes_scheme",
        mode="before",
    )
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

    @field_validator("router_overload_factor")
    @classmethod
    def _leaves_somebody(cls, factor: float) -> float:
        if 0 < factor < 1:
            raise ValueError("must be 0, or 1 and over: else all workers might have too much")
        return factor

    @field_validator("metrics_prefix")
    @classmethod
    def _is_metric_name(cls, prefix: str) -> str:
        if _METRIC_NAME.fullmatch(prefix) is None:
            raise ValueError("must be letters, digits, '_' and ':', and not start with a digit")
        return prefix.rstrip("_")

    @field_validator("kubernetes_namespace")
    @classmethod
    def _is_namespace(cls, name: str | None) -> str | None:
        if name not in (None, "*") and re.fullmatch(_DNS_LABEL, name) is None:
            raise ValueError(f"{name!r} is no name of a namespace, nor *")
        return name

    @field_validator("kubernetes_port")
    @classmethod
    def _is_port(cls, port: str | None) -> str | None:
        if port is not None:
            number = int(port) if re.fullmatch("[0-9]{1,5}", port) else None
            if not (0 < number < 65536 if number is not None else re.fullmatch(_DNS_LABEL, port)):
                raise ValueError(f"{port!r} is neither a port's number nor its name")
        return port

    @field_validator("kubernetes_api_url")
    @classmethod
    def _is_server(cls, url: str | None) -> str | None:
        return None if url is None else _server_url(url)

    @field_validator("etcd_endpoints")
    @classmethod
    def _are_servers(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(_server_url(url) for url in urls)

    @field_validator("etcd_prefix")
    @classmethod
    def _is_prefix(cls, prefix: str) -> str:
        if _PATH.fullmatch(prefix.rstrip("/")) is None:
            raise ValueError(f"{prefix!r} must be a path such as /tito-gateway")
        return prefix

    @model_validator(mode="after")
    def _store_is_whole(self) -> Self:
        if self.discovery_backend == "file" and self.discovery_file is None:
            raise ValueError("DYN_DISCOVERY_FILE: must be given with this discovery backend")
        if (self.etcd_user is None) is not (self.etcd_password is None):
            raise ValueError("DYN_ETCD_USER, DYN_ETCD_PASSWORD: one needs the other")
        if self.etcd_key_file is not None and self.etcd_cert_file is None:
            raise ValueError("DYN_ETCD_KEY_FILE: needs DYN_ETCD_CERT_FILE")
        return self

    @model_validator(mode="after")
    def _cluster_is_known(self) -> Self:
        if self.discovery_backend != "kubernetes":
            return self
        if self.kubernetes_selector is None:
            raise ValueError("DYN_KUBERNETES_SELECTOR: must say which objects are workers")
        server = self.kubernetes_server
        if server is None:
            raise ValueError("DYN_KUBERNETES_API_URL: must be given, as the gateway runs in no cluster")
        if self.kubernetes_token_file is not None and not server.startswith("https:"):
            raise ValueError("DYN_KUBERNETES_TOKEN_FILE: a token is sent to an https URL only")
        return self

    @model_validator(mode="after")
    def _certificates_are_whole(self) -> Self:
        for name, needed in (
            ("ssl_keyfile", "ssl_certfile"),
            ("ssl_keyfile_password", "ssl_certfile"),
            ("ssl_ca_certs", "ssl_certfile"),
            ("worker_client_key", "worker_client_cert"),
        ):
            if getattr(self, name) is not None and getattr(self, needed) is None:
                raise ValueError(f"DYN_{name.upper()}: needs DYN_{needed.upper()}")
        if self.worker_tls_insecure and self.worker_ca_file is not None:
            raise ValueError("DYN_WORKER_TLS_INSECURE, DYN_WORKER_CA_FILE: one makes the other pointless")
        return self

    @model_validator(mode="after")
    def _workers_are_allowed(self) -> Self:
        for entry in self.workers:
            if not permitted(entry.url, self.worker_patterns):
                raise ValueError(f"DYN_WORKER: {entry.url!r} is none of the URLs of DYN_ALLOW_WORKER_URL")
        return self

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
    def worker_patterns(self) -> tuple[UrlPattern, ...]:
        """``allow_worker_url``, taken apart."""
        return tuple(UrlPattern.parse(pattern) for pattern in self.allow_worker_url)

    @property
    def worker_authorization(self) -> bytes | None:
        """Value of the ``Authorization`` header for every worker; None: the client's own is passed on."""
        key = self.worker_api_key
        return None if key is None else b"Bearer " + key.get_secret_value().encode()

    @property
    def kubernetes_server(self) -> str | None:
        """URL of the API server: the one given, or that of the cluster the process runs in, if any."""
        host = variables.environment().get("KUBERNETES_SERVICE_HOST")
        if self.kubernetes_api_url is not None or not host:
            return self.kubernetes_api_url
        port = variables.environment().get("KUBERNETES_SERVICE_PORT") or "443"
        return f"https://{f'[{host}]' if ':' in host else host}:{port}"

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
