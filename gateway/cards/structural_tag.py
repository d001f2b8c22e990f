"""The structural-tag policy of a worker: whether its engine compiles grammars for tool calls, and which.

Owns: the policy, its strict reading from the text of a flag and from the JSON of a card, and the JSON of a
card. Must never enter: how a tag is built, which worker has which policy, I/O.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

#: The member of a card with the policy, and the older members with a part of it each.
KEY = "structural_tag"
MODE_KEY, SCOPE_KEY, SCHEMA_KEY = "structural_tag_mode", "structural_tag_scope", "structural_tag_schema"

_TRUE, _FALSE = frozenset({"true", "1", "yes", "on"}), frozenset({"false", "0", "no", "off"})

Scope = Literal["auto", "always"]
Schema = Literal["auto", "strict"]
ReasoningBoundary = Literal["auto", "structural_tag", "backend"]


@dataclass(frozen=True, slots=True)
class StructuralTag:
    """A policy. If not ``enabled``, no tags are sent and the other members have their defaults.

    ``scope``: when a request with ``tool_choice`` of ``auto`` gets a tag: always, or if it asks for it.
    ``schema``: whether the schema of a tool that has ``strict: false`` is enforced, too.
    ``allow_tool_calls_with_structured_output``: one tag for a ``response_format`` and tools.
    ``exclude_special_tokens``: None leaves it to the engine's builder of tags.
    ``reasoning_boundary``: whether the tag or the engine (``backend``) knows where reasoning ends.
    ``tool_arguments_any_order``: the arguments of a tool may come in any order.

    The defaults are those of the flag. A card that omits the scope has another one (``of_member``).
    """

    enabled: bool = True
    scope: Scope = "always"
    schema: Schema = "auto"
    allow_tool_calls_with_structured_output: bool = False
    exclude_special_tokens: bool | None = None
    reasoning_boundary: ReasoningBoundary = "auto"
    tool_arguments_any_order: bool = False

    @classmethod
    def parse(cls, text: str) -> StructuralTag:
        """Parse the text of a flag or variable: a word for on or off, or a JSON object.

        Raises ValueError.
        """
        trimmed = text.strip()
        if not trimmed:
            raise ValueError("must not be empty")
        if trimmed.lower() in _TRUE:
            return ON
        if trimmed.lower() in _FALSE:
            return OFF
        try:
            members = json.loads(trimmed)
        except (ValueError, RecursionError):
            members = None
        if not isinstance(members, dict):
            raise ValueError(f"must be true, false or a JSON object, not {_shown(trimmed)}")
        return _with(members, ON)

    @classmethod
    def of_member(cls, value: object) -> StructuralTag:
        """Return the policy of a card's member ``structural_tag``: an object, or null for off.

        Raises ValueError, which names the member.
        """
        if value is None:
            return OFF
        if not isinstance(value, Mapping):
            raise ValueError(f"{KEY} must be an object or null")
        try:
            return _with(value, _CARD_DEFAULT)
        except ValueError as error:
            raise ValueError(f"{KEY}: {error}") from None

    @classmethod
    def of_card(cls, members: Mapping[str, Any]) -> StructuralTag | None:
        """Return the policy of a card, of its older members if it lacks the member of today; None: neither.

        Raises ValueError, which names the member.
        """
        if KEY in members:
            return cls.of_member(members[KEY])
        older = {key: members[key] for key in (MODE_KEY, SCOPE_KEY, SCHEMA_KEY) if key in members}
        if not older:
            return None
        _one_of(MODE_KEY, mode := older.get(MODE_KEY, "on"), ("off", "on"))
        _one_of(SCOPE_KEY, scope := older.get(SCOPE_KEY, "auto"), get_args(Scope))
        _one_of(SCHEMA_KEY, schema := older.get(SCHEMA_KEY, "auto"), get_args(Schema))
        return StructuralTag(scope=scope, schema=schema) if mode == "on" else OFF

    def member(self) -> dict[str, Any] | None:
        """Return a card's member ``structural_tag``: every field that is not None, or None for off."""
        if not self.enabled:
            return None
        return {
            name: value for name, value in asdict(self).items() if name != "enabled" and value is not None
        }

    def members(self) -> dict[str, Any]:
        """Return the member of a card, and the older ones for readers that know only those."""
        scope, schema = (self.scope, self.schema) if self.enabled else ("auto", "auto")
        mode = "on" if self.enabled else "off"
        return {KEY: self.member(), MODE_KEY: mode, SCOPE_KEY: scope, SCHEMA_KEY: schema}

    def __str__(self) -> str:
        """Return a text that ``parse`` reads as this policy."""
        return json.dumps(self.member(), separators=(",", ":")) if self.enabled else "false"


def reported(document: Mapping[str, Any]) -> StructuralTag | None:
    """Return the policy that a server reports among other things; None if it reports none that is valid."""
    try:
        return StructuralTag.of_card(document)
    except ValueError:
        return None


ON, OFF = StructuralTag(), StructuralTag(enabled=False)
_CARD_DEFAULT = StructuralTag(scope="auto")
_CHOICES = {
    "scope": get_args(Scope),
    "schema": get_args(Schema),
    "reasoning_boundary": get_args(ReasoningBoundary),
}
_SWITCHES = ("allow_tool_calls_with_structured_output", "exclude_special_tokens", "tool_arguments_any_order")


def _with(members: Mapping[Any, Any], defaults: StructuralTag) -> StructuralTag:
    """Return ``defaults`` with the members of a JSON object. Raises ValueError, which names the member."""
    for name, value in members.items():
        if name in _CHOICES:
            _one_of(name, value, _CHOICES[name])
        elif name not in _SWITCHES:
            raise ValueError(f"unknown field {_shown(name)}")
        elif not (isinstance(value, bool) or (value is None and name == "exclude_special_tokens")):
            raise ValueError(f"{name} must be true or false, not {_shown(value)}")
    fields = {name: value for name, value in asdict(defaults).items() if name not in members}
    return StructuralTag(**{**fields, **members})


def _one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {_shown(value)}")


def _shown(value: object) -> str:
    """Return a value as an error shows it: as JSON, if it is of JSON, on one line and not too long."""
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:80]}…"
