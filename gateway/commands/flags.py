"""Command-line flags made from declared fields, so that none is forgotten.

Owns: converting the fields of ``Settings`` and of a dataclass to parameters of a command. Must never enter: a
field, a command.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from gateway.cards.structural_tag import StructuralTag
from gateway.settings import Settings, alias_of, flag_of, placeholder_of, value_alone_of, variable_of

Values = dict[str, Any]

#: The flags of settings that may be given without a value, and their value then.
_ALONE = {
    flag_of(name): value
    for name, field in Settings.model_fields.items()
    if (value := value_alone_of(field)) is not None
}

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
    default, alias = field.default, alias_of(field)
    notes = [variable_of(field)]
    if default not in (None, ()):
        notes.append(f"default: {str(default).lower() if isinstance(default, bool) else default}")
    if alias is not None:
        notes.append(f"older name: {flag_of(alias)}")
    return _flag(
        name,
        kind | None,
        f"{field.description} [{'; '.join(notes)}]",
        placeholder_of(field) or _metavar(field.annotation),
        alias,
        Settings.section_of(name),
    )


def _metavar(annotation: Any) -> str | None:
    """Return the placeholder of a value of this type in the help; a switch has none."""
    plain = _plain(annotation)
    if get_origin(plain) is Literal:
        return "|".join(get_args(plain))
    return {bool: None, int: "INTEGER", float: "NUMBER", StructuralTag: "[POLICY]"}.get(plain, "TEXT")


def dataclass_flags(kind: type) -> list[inspect.Parameter]:
    """Return one flag per field of the dataclass ``kind``, with the help text of its metadata."""
    hints = get_type_hints(kind)
    flags = []
    for field in fields(kind):
        text = field.metadata["help"]
        if field.default is not None and field.default is not False:
            text += f" [default: {str(field.default).lower()}]"
        hint = hints[field.name]
        kind = str if hint is StructuralTag else hint
        flags.append(_flag(field.name, kind | None, text, _metavar(hint)))
    return flags


def _plain(annotation: Any) -> Any:
    """Return ``X`` for ``X | None``."""
    if get_origin(annotation) in (Union, UnionType):
        return next(part for part in get_args(annotation) if part is not NoneType)
    return annotation


def _flag(  # noqa: PLR0913 - the options of a flag
    name: str,
    kind: Any,
    text: str,
    metavar: str | None,
    alias: str | None = None,
    section: str | None = None,
) -> inspect.Parameter:
    flag = flag_of(name)
    spelled = f"{flag}/--no-{flag.removeprefix('--')}" if _plain(kind) is bool else flag
    names = [spelled] if alias is None else [spelled, flag_of(alias)]
    option = typer.Option(*names, help=text, metavar=metavar, show_default=False, rich_help_panel=section)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option]
    )


class SettingsCommand(TyperCommand):
    """A command with flags of settings. Some may be given without a value, which typer has no flags for."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give each flag without a value the one it then has."""
        options = args[: args.index("--")] if "--" in args else args
        stands_alone = [following.startswith("-") for following in [*options[1:], "-"]]
        given = [
            f"{option}={_ALONE[option]}" if alone and option in _ALONE else option
            for option, alone in zip(options, stands_alone, strict=False)
        ]
        return super().parse_args(ctx, given + args[len(options) :])


class SectionedCommand(SettingsCommand):
    """A command whose help lists the flags by section; typer itself does so only in rich text."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the flags of each section under its heading, those without a section last."""
        sections: dict[str, list[tuple[str, str]]] = {}
        others: list[tuple[str, str]] = []
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                section = getattr(parameter, "rich_help_panel", None)
                (others if section is None else sections.setdefault(section, [])).append(record)
        for heading, records in [*sections.items(), ("Other options", others)]:
            with formatter.section(heading):
                formatter.write_dl(records)


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
