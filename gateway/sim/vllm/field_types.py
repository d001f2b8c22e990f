"""The conversions of vLLM's field types: pydantic's lax mode, with its texts about values that do not fit.

Owns: conversions of single values (vLLM 0.33.0). Must never enter: which fields there are, what values mean.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Conversion = Callable[[Any, str], Any]
_TRUE = frozenset({"true", "1", "on", "yes", "t", "y"})
_FALSE = frozenset({"false", "0", "off", "no", "f", "n"})


class Problem(Exception):
    """A value of the wrong type. ``line`` is the validator's line about it, ``path`` its place in the
    body.
    """

    def __init__(self, kind: str, path: str, message: str, value: Any, context: str = "") -> None:
        super().__init__(message)
        self.path = path
        text = repr(message)
        extra = f", 'ctx': {context}" if context else ""
        self.line = f"{{'type': '{kind}', 'loc': '{path}', 'msg': {text}, 'input': {shown(value)}{extra}}}"


def shown(value: Any) -> str:
    """Return a value as it appears in an error: containers by size only."""
    if isinstance(value, list | dict):
        return f"'<{type(value).__name__} of {len(value)} items>'"
    return repr(str(value))


def integer(value: Any, path: str) -> int:
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        if value.is_integer():
            return int(value)
        message = "Input should be a valid integer, got a number with a fractional part"
        raise Problem("int_from_float", path, message, value)
    if isinstance(value, str):
        digits = value.strip()
        if digits.lstrip("+-").isdecimal() and len(digits) < 4000:
            return int(digits)
        message = "Input should be a valid integer, unable to parse string as an integer"
        raise Problem("int_parsing", path, message, value)
    raise Problem("int_type", path, "Input should be a valid integer", value)


def number(value: Any, path: str) -> float:
    if isinstance(value, int | float | str):
        try:
            return float(value)
        except (ValueError, OverflowError) as error:
            message = "Input should be a valid number, unable to parse string as a number"
            raise Problem("float_parsing", path, message, value) from error
    raise Problem("float_type", path, "Input should be a valid number", value)


def boolean(value: Any, path: str) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).lower() if isinstance(value, str | int | float) else ""
    if word in _TRUE or word in _FALSE:
        return word in _TRUE
    if isinstance(value, str | int):
        message = "Input should be a valid boolean, unable to interpret input"
        raise Problem("bool_parsing", path, message, value)
    raise Problem("bool_type", path, "Input should be a valid boolean", value)


def literal(*values: str) -> Conversion:
    """Return the conversion to one of ``values``."""
    *rest, last = map(repr, values)
    expected = f"{', '.join(rest)} or {last}"

    def convert(value: Any, path: str) -> str:
        if value in values:
            return str(value)
        context = f"{{'expected': {expected!r}}}"
        raise Problem("literal_error", path, f"Input should be {expected}", value, context)

    return convert


def between(least: int, most: int) -> Conversion:
    """Return the conversion to an integer from ``least`` to ``most``."""

    def convert(value: Any, path: str) -> int:
        found = integer(value, path)
        if found < least:
            message = f"Input should be greater than or equal to {least}"
            raise Problem("greater_than_equal", path, message, value, f"{{'ge': {least}}}")
        if found > most:
            message = f"Input should be less than or equal to {most}"
            raise Problem("less_than_equal", path, message, value, f"{{'le': {most}}}")
        return found

    return convert


def text(value: Any, path: str) -> str:
    if isinstance(value, str):
        return value
    raise Problem("string_type", path, "Input should be a valid string", value)


def is_unicode(value: str) -> bool:
    """Return True if ``value`` has no unpaired surrogate, which Python's ``json`` reads."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def unicode_text(value: Any, path: str) -> str:
    """Return a text whose length the engine's model limits; such a text may have no unpaired surrogate."""
    found = text(value, path)
    if not is_unicode(found):
        message = "Input should be a valid string, unable to parse raw data as a unicode string"
        raise Problem("string_unicode", path, message, value)
    return found


def texts(value: Any, path: str) -> list[str]:
    """Return one string or a list of strings as a list."""
    if isinstance(value, str):
        return [value]
    return [text(item, f"{path}.{at}") for at, item in enumerate(items(value, path))]


def items(value: Any, path: str) -> list[Any]:
    if isinstance(value, list):
        return value
    raise Problem("list_type", path, "Input should be a valid list", value)


def integers(value: Any, path: str) -> list[int]:
    found = items(value, path)
    if set(map(type, found)) <= {int}:
        return found
    return [integer(item, f"{path}.{at}") for at, item in enumerate(found)]


def mapping(value: Any, path: str) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise Problem("dict_type", path, "Input should be a valid dictionary", value)


def biases(value: Any, path: str) -> dict[int, float]:
    """Return a mapping of token ids to numbers."""
    pairs = mapping(value, path).items()
    return {integer(key, f"{path}.{key}.[key]"): number(bias, f"{path}.{key}") for key, bias in pairs}
