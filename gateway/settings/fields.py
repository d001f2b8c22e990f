"""The declaration of a setting: its variable, flag, help text and type of value.

Owns: how a field is declared and where its value is read from. Must never enter: a setting.

Flags, help texts and the tables of the documentation are all made from the metadata in
``Settings.model_fields``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from gateway.settings import environment
from gateway.upstream.address import Address, BadWorkerUrl

_PATH = re.compile(r"(/[^\s:*?#/%][^\s?#/%]*)+")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Placeholder:
    """The word that stands for a value in the help, as metadata of the value's type."""

    text: str


@dataclass(frozen=True, slots=True)
class MayStandAlone:
    """The value of a flag that is given without one, as metadata of the value's type.

    An empty text is then no absent value but a bad one, in a variable as well.
    """

    value: str


class SettingsError(Exception):
    """A bad value. The message is one line and names the variable or flag it came from."""


def setting(variable: str, default: Any, text: str, alias: str | None = None, **limits: Any) -> Any:
    """Return a field of a section, read from ``variable``.

    ``text`` is its help. ``alias`` is an older name of the field; its flag and its variable stay valid.
    ``limits`` are pydantic's.
    """
    return Field(
        default, description=text, json_schema_extra={"variable": variable, "alias": alias}, **limits
    )


def variable_of(field: FieldInfo) -> str:
    """Return the name of the environment variable of one of ``Settings.model_fields``."""
    return str(_extra(field)["variable"])


def alias_of(field: FieldInfo) -> str | None:
    """Return the older name of the field, if it has one."""
    alias = _extra(field)["alias"]
    return None if alias is None else str(alias)


def variables_of(field: FieldInfo) -> tuple[str, ...]:
    """Return the names of all environment variables that set the field."""
    alias = alias_of(field)
    return (variable_of(field),) if alias is None else (variable_of(field), f"DYN_{alias.upper()}")


def placeholder_of(field: FieldInfo) -> str | None:
    """Return the word that stands for the field's value in the help, if its type has one."""
    return next((item.text for item in field.metadata if isinstance(item, Placeholder)), None)


def value_alone_of(field: FieldInfo) -> str | None:
    """Return the value of the field's flag if it is given without one; None: it cannot be."""
    return next((item.value for item in field.metadata if isinstance(item, MayStandAlone)), None)


def _extra(field: FieldInfo) -> dict[str, Any]:
    extra = field.json_schema_extra
    assert isinstance(extra, dict), "every field is made by setting()"
    return extra


def flag_of(name: str) -> str:
    """Return the command-line flag of the field ``name``."""
    return f"--{name.replace('_', '-')}"


class _Variables(PydanticBaseSettingsSource):
    """The environment as a source of values; an empty variable counts as unset, unless it is a bad value."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        found = environment.variables()
        unset = ("", None) if value_alone_of(field) is None else (None,)
        given = [variable for variable in variables_of(field) if found.get(variable) not in unset]
        if len(given) > 1:
            raise SettingsError(f"{', '.join(given)}: two names of one setting; set only one of them")
        return found[given[0]] if given else None, field_name, False

    def __call__(self) -> dict[str, Any]:
        fields = self.settings_cls.model_fields.items()
        values = {name: self.get_field_value(field, name)[0] for name, field in fields}
        return {name: value for name, value in values.items() if value is not None}


class Section(BaseSettings):
    """One section of the settings, validated and frozen. Arguments override the environment."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False, protected_namespaces=()
    )

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


def _split(value: object) -> object:
    entries = (value,) if isinstance(value, str) else value
    if not isinstance(entries, list | tuple) or not all(isinstance(entry, str) for entry in entries):
        return value
    return tuple(part.strip() for entry in entries for part in entry.split(",") if part.strip())


def _normalized(value: object) -> object:
    return value.strip().lower().replace("-", "_") if isinstance(value, str) else value


def _fits_a_header(key: SecretStr | None) -> SecretStr | None:
    if key is not None and re.fullmatch(r"[!-~]+", key.get_secret_value()) is None:
        raise ValueError("must be printable ASCII without spaces")
    return key


def is_path(text: str) -> bool:
    """Return True if ``text`` is a plain path of one or more segments."""
    return text.isascii() and _PATH.fullmatch(text) is not None


def _is_route(path: str) -> str:
    if not is_path(path):
        raise ValueError(
            f"{path!r} must start with '/' and be a plain path: no empty segment, query, space or "
            "escape, nothing but ASCII, and no segment that starts with ':' or '*'"
        )
    return path


def server_url(url: str) -> str:
    """Return ``url`` if it is the valid URL of a server, else raise ValueError."""
    try:
        Address.parse(url)
    except BadWorkerUrl as error:
        raise ValueError(str(error).replace("a worker's URL", "it").split(";")[0]) from error
    return url


#: Values of repeated flags, or one value with commas. The type of a field adds their placeholder.
Listed = Annotated[tuple[str, ...], BeforeValidator(_split)]
Urls = Annotated[Listed, Placeholder("URL")]
SecondsByPath = Annotated[Listed, Placeholder("[PATH=]SECONDS")]
#: One of several values, in upper or lower case, with ``-`` or ``_``.
Choice = Annotated[T, BeforeValidator(_normalized)]
Key = Annotated[SecretStr | None, AfterValidator(_fits_a_header), Placeholder("KEY")]
Password = Annotated[SecretStr | None, Placeholder("PASSWORD")]
Route = Annotated[str, AfterValidator(_is_route), Placeholder("PATH")]
#: Path of a file.
File = Annotated[str | None, Placeholder("PATH")]
