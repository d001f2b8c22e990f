"""The members of a card in JSON: strict reading, and writing.

Owns: their names, types and limits, and the shape of the object that holds them. Must never enter: where the
object comes from, a default.

Those that Dynamo keeps in the free map ``runtime_data`` are written there; they are read there and beside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from operator import attrgetter
from typing import Any

from gateway.cards.structural_tag import KEY, MODE_KEY, SCHEMA_KEY, SCOPE_KEY, StructuralTag
from gateway.cards.token_budget import TokenBudget
from gateway.cards.values import CardValues, KvEventSource

#: The name of the free map.
FREE = "runtime_data"
#: The most characters of a text, ranks, and characters of the free map.
TEXT_LIMIT, RANKS_LIMIT, FREE_LIMIT = 256, 1024, 16384
#: The most levels of the free map: deeper JSON may be read, but not written by code that runs deeper itself.
FREE_LEVELS = 32

Read = Callable[[str, Any], Any]


def _integer(least: int, most: int = (1 << 63) - 1) -> Read:
    def read(name: str, value: Any) -> int:
        # A bool is an int in Python, but not a number in JSON.
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"{name} must be an integer from {least} to {most}")
        return value

    return read


def _text(name: str, value: Any) -> str:
    if not (isinstance(value, str) and 0 < len(value) <= TEXT_LIMIT and value.isprintable()):
        raise ValueError(f"{name} must be a printable text of 1 to {TEXT_LIMIT} characters")
    return value


def _switch(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false")
    return value


def _token_budget(name: str, value: Any) -> TokenBudget:
    try:
        return TokenBudget.read(value)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def _kv_event_sources(name: str, value: Any) -> tuple[KvEventSource, ...]:
    if not isinstance(value, list) or len(value) > RANKS_LIMIT:
        raise ValueError(f"{name} must be a list of at most {RANKS_LIMIT} objects")
    return tuple(_kv_event_source(f"{name}[{index}]", each) for index, each in enumerate(value))


def _kv_event_source(name: str, value: Any) -> KvEventSource:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be an object")
    for key in value:
        if key not in _SOURCE:
            raise ValueError(f"{name}.{key}: no such member")
    for key in ("rank", "endpoint"):
        if value.get(key) is None:
            raise ValueError(f"{name}.{key} is missing")
    given = {key: each for key, each in value.items() if each is not None and (key, each) != ("topic", "")}
    return KvEventSource(**{key: _SOURCE[key](f"{name}.{key}", each) for key, each in given.items()})


_SOURCE: Mapping[str, Read] = {
    "rank": _integer(0, RANKS_LIMIT - 1),
    "endpoint": _text,
    "topic": _text,
    "replay_endpoint": _text,
}
#: The members that a record may have, as they are in ``CardValues``; a record itself has the role and the
#: bootstrap port, and only the engine knows its weights.
_PLAIN: Mapping[str, Read] = {
    "context_length": _integer(1),
    "kv_cache_block_size": _integer(1),
    "total_kv_blocks": _integer(1),
    "max_num_seqs": _integer(1),
    "max_num_batched_tokens": _integer(1),
    "data_parallel_start_rank": _integer(0),
    "data_parallel_size": _integer(1),
    "max_gpu_lora_count": _integer(0),
    "vocab_size": _integer(1, 1 << 31),
    "tool_call_parser": _text,
    "reasoning_parser": _text,
    "exclude_tools_when_tool_choice_none": _switch,
    "enable_eagle": _switch,
    "kv_event_publishing_enabled": _switch,
    "kv_event_sources": _kv_event_sources,
    "bootstrap_host": _text,
}
#: Those of the free map that are known.
_RUNTIME: Mapping[str, Read] = {
    "token_budget": _token_budget,
    "tool_call_structural_tag_reasoning_gate": _switch,
    "tool_call_structural_tag_excludes_reasoning": _switch,
}
_READERS = {**_PLAIN, **_RUNTIME}
_TAG_KEYS = (KEY, MODE_KEY, SCOPE_KEY, SCHEMA_KEY)
#: All names that ``read`` looks at.
NAMES = frozenset({*_READERS, *_TAG_KEYS, FREE})
#: Those with a number, and those with true or false: texts of a query are converted to them.
INTEGERS = tuple(name for name, read in _PLAIN.items() if read not in (_text, _switch, _kv_event_sources))
SWITCHES = tuple(name for name, read in _READERS.items() if read is _switch)


def read(members: Mapping[str, Any]) -> CardValues:
    """Return the values of a JSON object; other members are ignored. Null means that nothing is said, but for
    ``structural_tag``: no tags. Raises ValueError, which names the member at fault.
    """
    free = members.get(FREE)
    if free is not None and not isinstance(free, Mapping):
        raise ValueError(f"{FREE} must be an object")
    known = {name: value for name, value in (free or {}).items() if name in _RUNTIME}
    for name in known:
        if members.get(name) is not None:
            raise ValueError(f"{name} is given twice, in {FREE} and beside it")
    given = {
        name: reader(name, value)
        for name, reader in _READERS.items()
        if (value := known.get(name, members.get(name))) is not None
    }
    return CardValues(
        **given,
        structural_tag=StructuralTag.of_card({key: members[key] for key in _TAG_KEYS if key in members}),
        runtime_data=_free({name: value for name, value in (free or {}).items() if name not in _RUNTIME}),
    )


def write(values: CardValues) -> dict[str, Any]:
    """Return the JSON object of ``values``, without the members that are None."""
    found = _present(_ORDER, _ordered(values))
    if values.kv_event_sources is not None:
        found["kv_event_sources"] = [asdict(source) for source in values.kv_event_sources]
    if values.structural_tag is not None:
        found |= values.structural_tag.members()
    free = {**(values.runtime_data or {}), **_present(_RUNTIME, _runtime(values))}
    if values.token_budget is not None:
        free["token_budget"] = values.token_budget.document()
    free |= dict.fromkeys(values.capabilities or (), True)  # no other key may pretend to be one
    return found | {FREE: free} if free else found


#: The members outside the free map, in the order in which they are written.
_ORDER = ("worker_type", "bootstrap_port", "weight_version", *_PLAIN)
_ordered, _runtime = attrgetter(*_ORDER), attrgetter(*_RUNTIME)


def _present(names: Iterable[str], values: Iterable[Any]) -> dict[str, Any]:
    return {name: value for name, value in zip(names, values, strict=True) if value is not None}


def _free(members: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if not _is_flat(members, FREE_LEVELS):
        raise ValueError(f"{FREE} must be nested in at most {FREE_LEVELS} levels")
    try:
        text = json.dumps(members, allow_nan=False)
    except ValueError as error:
        raise ValueError(f"{FREE} must have finite numbers") from error
    if len(text) > FREE_LIMIT:
        raise ValueError(f"{FREE} must have at most {FREE_LIMIT} characters")
    return members or None


def _is_flat(value: Any, levels: int) -> bool:
    """Return True if objects and lists are nested in at most so many levels."""
    if not isinstance(value, Mapping | list):
        return True
    each = value.values() if isinstance(value, Mapping) else value
    return levels > 0 and all(_is_flat(item, levels - 1) for item in each)
