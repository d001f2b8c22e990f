"""Command-line flags made from declared fields, so that none is forgotten.

Owns: converting the fields of ``Settings`` and of a dataclass to parameters of a command. Must never enter: a
field, a command.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import typer

from gateway.settings import Settings, alias_of, flag_of, variable_of

Values = dict[str, Any]

END_WITH_STDIN = inspect.Parameter(
    "end_with_stdin",
    inspect.Parameter.KEYWORD_ONLY,
    default=False,
    annotation=Annotated[bool, typer.Option("--end-with-stdin", hidden=True)],
)


def setting_flags(names: Iterable[str] = tuple(Settings.model_fields)) -> list[inspect.Parameter]:
    """Return one flag per setting.

    Values stay text, because ``Settings`` validates flags and variables alike.
    """
    return [_setting_flag(name) for name in names]


def _setting_flag(name: str) -> inspect.Parameter:
    field = Settings.model_fields[name]
    kinds: Mapping[Any, Any] = {bool: bool, tuple[str, ...]: list[str]}
    kind = kinds.get(field.annotation, str)
    default = field.default
    if default in (None, ()):
        shown = ""
    else:
        shown = f"; default: {str(default).lower() if isinstance(default, bool) else default}"
    text = f"{field.description} [{variable_of(field)}{shown}]"
    return _flag(name, kind | None, None, text, _metavar(name, field.annotation), alias_of(field))


#: The placeholder of a value in the help, by its type, unless ``_SPECIFIC`` has one for the type and the last
#: word of the field's name.
_PLACEHOLDERS = {"int": "INTEGER", "float": "NUMBER", "SecretStr": "KEY", "tuple": "URL"}
_SPECIFIC = {("tuple", "secs"): "SECONDS", ("tuple", "path"): "PATH", ("SecretStr", "password"): "PASSWORD"}


def _metavar(name: str, annotation: Any) -> str | None:
    if annotation is bool:
        return None
    plain = _plain(annotation)
    kind = getattr(get_origin(plain) or plain, "__name__", "")
    return _SPECIFIC.get((kind, name.rpartition("_")[2])) or _PLACEHOLDERS.get(kind, "TEXT")


def dataclass_flags(kind: type) -> list[inspect.Parameter]:
    """Return one flag per field of the dataclass ``kind``, with the help text of its metadata."""
    hints = get_type_hints(kind)
    flags = []
    for field in fields(kind):
        text = field.metadata["help"]
        if field.default is not None and field.default is not False:
            text += f" [default: {str(field.default).lower()}]"
        flags.append(_flag(field.name, hints[field.name] | None, None, text))
    return flags


def _plain(annotation: Any) -> Any:
    """Return ``X`` for ``X | None``."""
    if get_origin(annotation) in (Union, UnionType):
        return next(part for part in get_args(annotation) if part is not NoneType)
    return annotation


def _flag(  # noqa: PLR0913 - the options of a flag
    name: str, kind: Any, default: Any, text: str, metavar: str | None = None, alias: str | None = None
) -> inspect.Parameter:
    flag = flag_of(name)
    spelled = f"{flag}/--no-{flag.removeprefix('--')}" if _plain(kind) is bool else flag
    names = [spelled] if alias is None else [spelled, flag_of(alias)]
    option = typer.Option(*names, help=text, metavar=metavar, show_default=False)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, option]
    )


def command(
    run: Callable[[Values], None], parameters: Iterable[inspect.Parameter], text: str
) -> Callable[..., None]:
    """Return a function for typer that passes the values of ``parameters`` (None: not given) to ``run``."""
    listed = list(parameters)

    def call(**values: Any) -> None:
        run(values)

    call.__doc__ = text
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in listed}
    call.__dict__["__signature__"] = inspect.Signature(listed)
    return call
