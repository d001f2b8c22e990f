"""The types of an SGLang body's fields, as pydantic checks them, with its texts about values that do not fit.

Owns: one check per type. Must never enter: which field has which type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Renders the text about a value that does not fit, given its place and the value.
Problem = Callable[[tuple[str, ...], Any], str]
#: Returns None for a value that fits.
Check = Callable[[Any], Problem | None]


def problem(kind: str, message: str) -> Problem:
    """Return the Problem of pydantic's error ``kind``."""
    return lambda place, value: (
        f"{{'type': {kind!r}, 'loc': {('body', *place)!r}, 'msg': {message!r}, 'input': {value!r}}}"
    )


def value_problem(message: str) -> Problem:
    """Return the Problem of an error raised by the engine's own validator."""

    def text(place: tuple[str, ...], value: Any) -> str:
        reason = f"Value error, {message}"
        return (
            f"{{'type': 'value_error', 'loc': {('body', *place)!r}, 'msg': {reason!r}, 'input': {value!r}, "
            f"'ctx': {{'error': ValueError({message!r})}}}}"
        )

    return text


def literal(*values: str) -> Check:
    """Return the check for one of ``values``."""
    *rest, last = map(repr, values)
    expected = f"{', '.join(rest)} or {last}"
    message = f"Input should be {expected}"

    def wrong(place: tuple[str, ...], value: Any) -> str:
        plain = problem("literal_error", message)(place, value)
        return f"{plain[:-1]}, 'ctx': {{'expected': {expected!r}}}}}"

    return lambda value: None if value in values else wrong


NOT_LIST = problem("list_type", "Input should be a valid list")
NOT_INT = problem("int_type", "Input should be a valid integer")
MISSING = problem("missing", "Field required")
_UNREADABLE_INT = problem(
    "int_parsing", "Input should be a valid integer, unable to parse string as an integer"
)
_NOT_BOOL = problem("bool_type", "Input should be a valid boolean")
_UNREADABLE_BOOL = problem("bool_parsing", "Input should be a valid boolean, unable to interpret input")
_NOT_STR = problem("string_type", "Input should be a valid string")
_NOT_DICT = problem("dict_type", "Input should be a valid dictionary")
_LAX_BOOLS = {"true", "false", "1", "0", "on", "off", "yes", "no", "t", "f", "y", "n"}


def boolean(value: Any) -> Problem | None:
    if isinstance(value, str):
        return None if value.lower() in _LAX_BOOLS else _UNREADABLE_BOOL
    if isinstance(value, int | float) and value in (0, 1):
        return None
    return _UNREADABLE_BOOL if isinstance(value, int) else _NOT_BOOL


def integer(value: Any) -> Problem | None:
    if isinstance(value, str):
        return None if value.strip().lstrip("+-").isdecimal() else _UNREADABLE_INT
    if isinstance(value, float):
        return None if value.is_integer() else NOT_INT
    return None if isinstance(value, int) else NOT_INT


def string(value: Any) -> Problem | None:
    return None if isinstance(value, str) else _NOT_STR


def dictionary(value: Any) -> Problem | None:
    return None if isinstance(value, dict) else _NOT_DICT


def any_list(value: Any) -> Problem | None:
    return None if isinstance(value, list) else NOT_LIST


def list_of(check: Check) -> Check:
    """Return the check for a list whose items all fit ``check``."""

    def items(value: Any) -> Problem | None:
        if not isinstance(value, list):
            return NOT_LIST
        return next((wrong for item in value if (wrong := check(item))), None)

    return items


def optional(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def one_or_list(check: Check) -> Check:
    """Return the check for a value, a list of values, or null."""
    several = list_of(check)
    return optional(lambda value: several(value) if isinstance(value, list) else check(value))
