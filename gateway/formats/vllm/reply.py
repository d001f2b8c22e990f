"""The members of a reply that the gateway reads, in a stream's chunk and in a unary reply alike (vLLM
0.33.0).

Owns: the typed structs they are decoded into, and reading an object of another shape. Must never enter: bytes
that are relayed.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from gateway.errors import UpstreamMalformed
from gateway.formats import routing_data
from gateway.formats.contract import ReplyFacts


class _Details(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class Usage(msgspec.Struct, gc=False):
    """Token counts: of one sample if there is a choice in the same chunk, else of the entire reply."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None

    @classmethod
    def of(cls, found: Any) -> Usage | None:
        """Return the usage that can be read of a JSON value."""
        if not isinstance(found, dict):
            return None
        details = found.get("prompt_tokens_details")
        cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
        return cls(
            _count(found.get("prompt_tokens")), _count(found.get("completion_tokens")), _Details(cached)
        )


class Choice(msgspec.Struct, gc=False):
    """New tokens of one sample and, with the last of them, why it has finished."""

    index: int = 0
    finish_reason: str | None = None
    token_ids: list[int] | None = None

    @classmethod
    def of(cls, found: Any, position: int) -> Choice:
        """Return the choice that can be read of a JSON value; ``position`` is its index unless it has one."""
        if not isinstance(found, dict):
            return cls(position)
        index = found.get("index")
        reason = found.get("finish_reason")
        ids = found.get("token_ids")
        return cls(
            index if isinstance(index, int) else position,
            None if reason is None else str(reason),
            ids if isinstance(ids, list) else None,
        )


#: The value of a member that a reply does not have.
ABSENT = msgspec.Raw()


class Chunk(msgspec.Struct, gc=False):
    """One event of a stream, or a unary reply."""

    choices: list[Choice] = []
    usage: Usage | None = None
    error: Any = None
    routing_data: msgspec.Raw = ABSENT

    @classmethod
    def of(cls, found: dict[str, Any]) -> Chunk:
        """Return the chunk that can be read of a JSON object; never fails."""
        listed = found.get("choices")
        choices = listed if isinstance(listed, list) else []
        return cls(
            [Choice.of(choice, position) for position, choice in enumerate(choices)],
            Usage.of(found.get("usage")),
            found.get("error"),
            msgspec.Raw() if routing_data.NAME in found else ABSENT,
        )


class UnaryChoice(msgspec.Struct, gc=False):
    """One sample of a unary reply; its tokens are counted, not decoded."""

    finish_reason: str | None = None
    token_ids: msgspec.Raw = msgspec.Raw(b"null")


class UnaryReply(msgspec.Struct):
    """A unary reply of the usual shape."""

    choices: list[UnaryChoice] = []
    usage: Usage | None = None
    error: object = None


def any_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object in ``data``, as Python's ``json`` reads it. Raises UpstreamMalformed if there is
    none.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UpstreamMalformed("The worker sent something that is not JSON", cause=error) from error
    if not isinstance(found, dict):
        raise UpstreamMalformed("The worker sent JSON that is not an object")
    return found


def note_usage(facts: ReplyFacts, usage: Usage, *, total: bool) -> None:
    """Add counts to ``facts``. ``total``: they are about all samples, so their tokens count if more than
    seen.
    """
    if usage.prompt_tokens is not None:
        facts.prompt_tokens = usage.prompt_tokens
    details = usage.prompt_tokens_details
    if details is not None and details.cached_tokens is not None:
        facts.cached_tokens = details.cached_tokens
    if total and usage.completion_tokens is not None:
        facts.tokens = max(facts.tokens, usage.completion_tokens)


def error_status(error: Any) -> int:
    """Return the HTTP-like code of an error object inside a 200; 500 if it names none."""
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and 400 <= code <= 599 else 500


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) else None
