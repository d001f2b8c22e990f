"""Who a request belongs to and what it may take, as its headers tell: session, routing key, trace, time.

Owns: which headers say so and which of them wins. Must never enter: a dialect, a body, I/O, third-party
packages. The headers themselves go on to the worker unchanged.

Agents name their session in their own ways. The first of these that is there is taken whole, parent and all:
``x-dynamo-session-id``, Claude Code's, Codex's, OpenCode's (``x-session-id``, which other clients send for
sticky routing).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from gateway.errors import InvalidRequest, MetadataTooLarge
from gateway.formats.contract import Headers

#: Entries, and bytes of names and values together, that metadata may have.
METADATA_ENTRIES = 64
METADATA_BYTES = 64 * 1024

_METADATA = b"x-dynamo-meta-"
_PREFIX = len(_METADATA)
_ROUTING_KEY = b"x-smg-routing-key"
_SESSION = b"x-session-id"
_FINAL = b"x-dynamo-session-final"
_TRACE = b"traceparent"
_TIMEOUT = b"x-request-timeout"
_DYNAMO = (b"x-dynamo-session-id", b"x-dynamo-parent-session-id")
_CODEX = (b"thread-id", b"x-codex-parent-thread-id")
_OPEN_CODE = (_SESSION, b"x-parent-session-id")
_CLAUDE_ROOT = b"x-claude-code-session-id"
_CLAUDE_CHILD = b"x-claude-code-agent-id"
_CLAUDE_PARENT = b"x-claude-code-parent-agent-id"

_READ = frozenset(
    {
        _ROUTING_KEY,
        _FINAL,
        _TRACE,
        _TIMEOUT,
        _CLAUDE_ROOT,
        _CLAUDE_CHILD,
        _CLAUDE_PARENT,
        *_DYNAMO,
        *_CODEX,
        *_OPEN_CODE,
    }
)

_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{0,9})?|\.[0-9]{1,9}")

Session = tuple[str | None, str | None]


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What the headers of one request say beside the request itself; None or empty where they do not.

    ``session`` is an agent's or a conversation's id, ``parent_session`` the one that started it,
    ``session_final`` the client's word that no request of it follows. ``routing_key`` is
    ``X-SMG-Routing-Key`` and ``session_header`` ``X-Session-ID``, whatever the session was taken from.
    ``metadata`` are the ``x-dynamo-meta-*`` headers without that prefix; its values are the client's matter
    and appear in no log. ``traceparent`` is W3C's, unread. ``timeout`` is ``X-Request-Timeout``: how long it
    may take, in seconds.
    """

    session: str | None = None
    parent_session: str | None = None
    session_final: bool = False
    routing_key: str | None = None
    session_header: str | None = None
    traceparent: str | None = None
    timeout: float | None = None
    metadata: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def key(self) -> str | None:
        """What requests that belong on one worker have in common.

        The key that was made for that comes first, then the header that routers know, then an agent's own.
        """
        return self.routing_key or self.session_header or self.session


NO_CONTEXT = RequestContext()


def read_context(headers: Headers) -> RequestContext:
    """The context in ``headers``. Raises MetadataTooLarge, and InvalidRequest for a bad timeout.

    Values are trimmed; of lines with one name the first counts. One that is not UTF-8 is not there, and but
    for metadata neither is an empty one.
    """
    for name, _ in headers:
        if name in _READ or name[:_PREFIX] == _METADATA:
            return _context(headers)
    return NO_CONTEXT


def _context(headers: Headers) -> RequestContext:
    named: dict[bytes, str] = {}
    metadata: dict[str, str] = {}
    for name, value in headers:
        try:
            if name in _READ:
                if text := value.decode().strip():
                    named.setdefault(name, text)
            elif name[:_PREFIX] == _METADATA and (key := name[_PREFIX:].decode()):
                metadata.setdefault(key, value.decode().strip())
        except UnicodeDecodeError:
            continue
    _check(metadata)
    session, parent = _session(named)
    return RequestContext(
        session=session,
        parent_session=parent if parent != session else None,
        session_final=session is not None and named.get(_FINAL, "").lower() in ("true", "1"),
        routing_key=named.get(_ROUTING_KEY),
        session_header=named.get(_SESSION),
        traceparent=named.get(_TRACE),
        timeout=_seconds(named.get(_TIMEOUT)),
        metadata=MappingProxyType(metadata),
    )


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    seconds = float(text) if _SECONDS.fullmatch(text) else 0.0
    if not seconds > 0.0:
        raise InvalidRequest("X-Request-Timeout: must be a number of seconds above 0, such as 30 or 2.5")
    return seconds


def _session(named: Mapping[bytes, str]) -> Session:
    if _DYNAMO[0] in named:
        return _pair(named, _DYNAMO)
    root, child = named.get(_CLAUDE_ROOT), named.get(_CLAUDE_CHILD)
    if root is not None or child is not None:
        return child or root, named.get(_CLAUDE_PARENT, root)
    return _pair(named, _CODEX if _CODEX[0] in named else _OPEN_CODE)


def _pair(named: Mapping[bytes, str], names: tuple[bytes, bytes]) -> Session:
    own, parent = names
    return (named[own], named.get(parent)) if own in named else (None, None)


def _check(metadata: Mapping[str, str]) -> None:
    if len(metadata) > METADATA_ENTRIES:
        raise MetadataTooLarge(f"the metadata headers are over the limit of {METADATA_ENTRIES} entries")
    size = sum(len(key.encode()) + len(value.encode()) for key, value in metadata.items())
    if size > METADATA_BYTES:
        raise MetadataTooLarge(f"the metadata headers are over the limit of {METADATA_BYTES} bytes")
