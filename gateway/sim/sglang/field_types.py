"""The types of a SGLang body's fields, as pydantic sees them: what fits, and the text about what does not.

Owns: one check per type. Must never enter: which field has which type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: The text about a value that does not fit, for the place where it is.
Problem = Callable[[tuple[str, ...], Any], str]
#: None for a value that fits.
Check = Callable[[Any], Problem | None]


def problem(kind: str, message: str) -> Problem:
    """The plain case."""
    return lambda place, value: (
        f"{{'type': {kind!r}, 'loc': {('body', *place)!r}, 'msg': {message!r}, 'input': {value!r}}}"
    )


def value_problem(message: str) -> Problem:
    """An error of the engine's own, which the validator passes on."""

    def text(place: tuple[str, ...], value: Any) -> str:
        reason = f"Value error, {message}"
        return (
            f"{{'type': 'value_error', 'loc': {('body', *place)!r}, 'msg': {reason!r}, 'input': {value!r}, "
            f"'ctx': {{'error': ValueError({message!r})}}}}"
        )

    return text


def literal(*values: str) -> Check:
    """One of ``values``."""
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
    """A list whose items all fit ``check``."""

    def items(value: Any) -> Problem | None:
        if not isinstance(value, list):
            return NOT_LIST
        return next((wrong for item in value if (wrong := check(item))), None)

    return items


def optional(check: Check) -> Check:
    return lambda value: None if value is None else check(value)


def one_or_list(check: Check) -> Check:
    """A value, a list of them, or nothing."""
    several = list_of(check)
    return optional(lambda value: several(value) if isinstance(value, list) else check(value))
