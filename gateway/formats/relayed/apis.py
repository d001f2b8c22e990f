"""The APIs that streams of relayed routes speak.

Owns: the APIs whose streams end with an event of their own, and which of them a route or an event belongs to.
Must never enter: bytes of a reply, errors.
"""

from __future__ import annotations

from enum import Enum

_MESSAGES_EVENTS = frozenset(
    {
        "message_start",
        "message_delta",
        "message_stop",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
    }
)


class StreamApi(Enum):
    """An API, by the part of a path that its routes have. Its streams end with an event of its own."""

    #: Chat completions and completions of OpenAI: chunks with ``choices``, then ``[DONE]``.
    CHUNKS = "/completions"
    #: Responses of OpenAI: events of the type ``response.*``, the last one of a few known ones.
    RESPONSES = "/responses"
    #: Messages of Anthropic: named events, the last one ``message_stop``.
    MESSAGES = "/messages"


def api_of_path(path: str) -> StreamApi | None:
    """Return the API of the route at ``path``; None: no known one."""
    return next((api for api in StreamApi if api.value in path), None)


def api_of_event(type: str) -> StreamApi | None:
    """Return the API of an event with this ``type``; None: no known one, or an event that several have."""
    if type.startswith("response."):
        return StreamApi.RESPONSES
    return StreamApi.MESSAGES if type in _MESSAGES_EVENTS else None
