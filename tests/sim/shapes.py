"""The shape of a reply: its keys in their order and the kinds of its values."""

from __future__ import annotations

from typing import Any

#: Their presence is fixed, their content depends on what was asked before or on the tokens.
OPAQUE = {"cached_tokens_details", "stop_reason", "decode_moments"}


def shape(value: Any) -> Any:
    """Return the keys in order and the kinds of the values; a list is represented by its first entry."""
    if isinstance(value, dict):
        return [(key, "any" if key in OPAQUE else _field(key, item)) for key, item in value.items()]
    if isinstance(value, list):
        return ["list", *(shape(item) for item in value[:1])]
    if isinstance(value, bool) or value is None:
        return repr(value)
    return "number" if isinstance(value, int | float) else "text"


def _field(key: str, value: Any) -> Any:
    if key == "finish_reason" and value is not None:
        return "a reason"
    if key == "prompt_logprobs" and value is not None:
        # Keyed by token ids.
        return [value[0], *(shape(list(entry.values())) for entry in value[1:])]
    return shape(value)
