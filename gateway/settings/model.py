"""All sections together, loaded and judged.

Owns: rules between sections, and the line that says what is wrong. Must never enter: a setting.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Self

from pydantic import PrivateAttr, ValidationError, model_validator

from gateway.settings import environment
from gateway.settings.fields import SettingsError, flag_of, variable_of, variables_of
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


# The other way round: pydantic lists the fields of the last base first.
class Settings(Metrics, Logs, Paths, Requests, Limits, Keys, Listening, Kubernetes, Stores, Workers):
    """All settings, in the order of their documentation."""

    #: Fields whose value was given by a flag.
    _flags: frozenset[str] = PrivateAttr(frozenset())

    @model_validator(mode="after")
    def _file_is_known(self) -> Self:
        if self.discovery_backend == "file" and self.discovery_file is None:
            raise ValueError("DYN_DISCOVERY_FILE: must be given with this discovery backend")
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
    def _limits_can_be_shared(self) -> Self:
        for name in ("max_in_flight", "max_in_flight_per_worker", "max_connections"):
            limit = getattr(self, name)
            if limit is not None and limit < self.processes:
                raise ValueError(
                    f"{variable_of(type(self).model_fields[name])}: each process has its share of it, so it "
                    f"must be at least DYN_HTTP_PROCESSES, {self.processes}"
                )
        return self

    def share(self, limit: int | None) -> int | None:
        """What each process may have of what all together may have."""
        return None if limit is None else limit // self.processes

    def source_of(self, name: str) -> str:
        """What gave the field ``name`` its value, as its user spells it: the flag, or else the variable."""
        return _source(name, self._flags)

    def sources_with(self, values: Collection[str]) -> str:
        """The same for all fields that have one of ``values``."""
        fields = type(self).model_fields
        return ", ".join(self.source_of(name) for name in fields if getattr(self, name) in values)


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
    """One line about the ``DYN_*`` variables in the environment that do nothing, or None."""
    known = [variable for field in Settings.model_fields.values() for variable in variables_of(field)]
    return environment.ignored_variables(known)
