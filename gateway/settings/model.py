"""All settings in one class, loaded and validated.

Owns: rules between sections, and the error line for bad values. Must never enter: a setting.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Self, TypeVar

from pydantic import PrivateAttr, ValidationError, model_validator

from gateway.settings import environment
from gateway.settings.cards import Cards
from gateway.settings.fields import Section, SettingsError, flag_of, variable_of, variables_of
from gateway.settings.keys import Keys
from gateway.settings.kubernetes import Kubernetes
from gateway.settings.limits import Limits
from gateway.settings.listening import Listening
from gateway.settings.logs import Logs
from gateway.settings.metrics import Metrics
from gateway.settings.paths import Paths
from gateway.settings.requests import Requests
from gateway.settings.stores import Stores
from gateway.settings.workers import Workers

S = TypeVar("S", bound=Section)


# In reverse order, because pydantic lists the fields of the last base class first.
class Settings(Metrics, Logs, Paths, Requests, Limits, Keys, Listening, Kubernetes, Stores, Cards, Workers):
    """All settings, in the order of their documentation."""

    #: The fields whose value was given by a flag.
    _flags: frozenset[str] = PrivateAttr(frozenset())

    @model_validator(mode="after")
    def _file_is_known(self) -> Self:
        if self.discovery_backend == "file" and self.discovery_file is None:
            raise ValueError("DYN_DISCOVERY_FILE: is required with this discovery backend")
        return self

    @model_validator(mode="after")
    def _cluster_is_known(self) -> Self:
        if self.discovery_backend != "kubernetes":
            return self
        if self.kubernetes_selector is None:
            raise ValueError("DYN_KUBERNETES_SELECTOR: is required with this discovery backend")
        server = self.kubernetes_server
        if server is None:
            raise ValueError(
                "DYN_KUBERNETES_API_URL: is required, because the gateway does not run in a cluster"
            )
        if self.kubernetes_token_file is not None and not server.startswith("https:"):
            raise ValueError("DYN_KUBERNETES_TOKEN_FILE: a token is only sent to an https URL")
        return self

    @model_validator(mode="after")
    def _limits_can_be_shared(self) -> Self:
        for name in ("max_in_flight", "max_in_flight_per_worker", "max_connections"):
            limit = getattr(self, name)
            if limit is not None and limit < self.processes:
                raise ValueError(
                    f"{variable_of(type(self).model_fields[name])}: each process gets an equal share, so it "
                    f"must be at least DYN_HTTP_PROCESSES, {self.processes}"
                )
        return self

    @classmethod
    def section_of(cls, name: str) -> str:
        """Return the title of the section that has the field ``name``."""
        section = next(
            base for base in cls.__bases__ if issubclass(base, Section) and name in base.model_fields
        )
        return str(section.__doc__).removesuffix(".")

    def share(self, limit: int | None) -> int | None:
        """Return the share of one process in a limit for all processes."""
        return None if limit is None else limit // self.processes

    def source_of(self, name: str) -> str:
        """Return the flag that gave the field ``name`` its value, or else its variable."""
        return _source(name, self._flags)

    def sources_with(self, values: Collection[str]) -> str:
        """Return the flags or variables of all fields that have one of ``values``."""
        fields = type(self).model_fields
        return ", ".join(self.source_of(name) for name in fields if getattr(self, name) in values)


def load_settings(flags: Mapping[str, Any] | None = None) -> Settings:
    """Load settings from ``flags`` (by field name; None: not given), then the environment, then defaults.

    Raise SettingsError.
    """
    settings = load_section(Settings, flags or {})
    settings._flags = frozenset(name for name, value in (flags or {}).items() if value is not None)
    return settings


def load_section(section: type[S], flags: Mapping[str, Any]) -> S:
    """Load one section, for a command that has no others, in the same way. Raise SettingsError."""
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return section(**given)
    except ValidationError as error:
        raise SettingsError("; ".join(_error_texts(error, given))) from None


def _error_texts(error: ValidationError, flags: Mapping[str, Any]) -> Iterable[str]:
    for detail in error.errors(include_url=False, include_input=False):
        text = detail["msg"].removeprefix("Value error, ")
        name = str(detail["loc"][0]) if detail["loc"] else ""
        if name in Settings.model_fields:
            text = f"{_source(name, flags)}: {text}"
        yield " ".join(text.split())


def _source(name: str, flags: Collection[str]) -> str:
    if name in flags:
        return flag_of(name)
    field, found = Settings.model_fields[name], environment.variables()
    return next((variable for variable in variables_of(field) if found.get(variable)), variable_of(field))


def ignored_variables() -> str | None:
    """Return one line about the ``DYN_*`` variables that have no effect, None if there is none."""
    known = [variable for field in Settings.model_fields.values() for variable in variables_of(field)]
    return environment.ignored_variables(known)
