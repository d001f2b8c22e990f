"""The context of a request in its headers: session, routing key, trace, metadata, time limit.

Owns: which headers are read and which of them takes precedence. Must never enter: a dialect, a body, I/O,
third-party packages. The headers themselves are forwarded to the worker unchanged.

Agents name their session by headers of their own. The first kind that is present is used, its parent session
included: ``x-dynamo-session-id``, Claude Code's, Codex's, OpenCode's (``x-session-id``, which other clients
send for sticky routing).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from gateway.errors import InvalidRequest, MetadataTooLarge
from gateway.formats.contract import Headers

#: The largest number of metadata entries, and of bytes in their names and values together.
METADATA_ENTRIES = 64
METADATA_BYTES = 64 * 1024

_METADATA = b"x-dynamo-meta-"
_PREFIX = len(_METADATA)
_ROUTING_KEY = b"x-smg-routing-key"
_SESSION = b"x-session-id"
_FINAL = b"x-dynamo-session-final"
_TRACE = b"traceparent"
_TIMEOUT = b"x-request-timeout"
_VIA = b"via"
_CODING = b"content-encoding"
_BODY_COMPRESSED = b"x-body-compressed"
_DYNAMO = (b"x-dynamo-session-id", b"x-dynamo-parent-session-id")
_CODEX = (b"thread-id", b"x-codex-parent-thread-id")
_OPEN_CODE = (_SESSION, b"x-parent-session-id")
_CLAUDE_ROOT = b"x-claude-code-session-id"
_CLAUDE_CHILD = b"x-claude-code-agent-id"
_CLAUDE_PARENT = b"x-claude-code-parent-agent-id"

_CONTEXT_HEADERS = frozenset(
    {
        _ROUTING_KEY,
        _FINAL,
        _TRACE,
        _TIMEOUT,
        _VIA,
        _CODING,
        _BODY_COMPRESSED,
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
    """The context of one request; None or empty where no header gives it.

    ``session`` is the id of an agent or a conversation, ``parent_session`` that of the one that started it;
    ``session_final``: the client sends no further request of the session. ``routing_key`` is the value of
    ``X-SMG-Routing-Key`` and ``session_header`` that of ``X-Session-ID``, from whichever header the session
    was taken. ``metadata`` are the ``x-dynamo-meta-*`` headers without that prefix; their values are never
    logged. ``traceparent`` is that of W3C Trace Context, not parsed. ``timeout`` is the value of
    ``X-Request-Timeout``: the client's own time limit, in seconds. ``forwarded``: a proxy sent the request.
    ``coding`` is the content coding of its body, in lower case.
    """

    session: str | None = None
    parent_session: str | None = None
    session_final: bool = False
    routing_key: str | None = None
    session_header: str | None = None
    traceparent: str | None = None
    timeout: float | None = None
    forwarded: bool = False
    coding: str | None = None
    metadata: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def key(self) -> str | None:
        """The routing key: requests with the same key go to the same worker.

        The header made for that purpose takes precedence, then the one routers know, then an agent's own.
        """
        return self.routing_key or self.session_header or self.session


NO_CONTEXT = RequestContext()


def read_context(headers: Headers) -> RequestContext:
    """Return the context in ``headers``. Raises MetadataTooLarge, and InvalidRequest for a bad timeout.

    Values are trimmed; of several lines with one name the first counts. Values that are not UTF-8 are
    ignored, and so are empty ones except for metadata.
    """
    for name, _ in headers:
        if name in _CONTEXT_HEADERS or name[:_PREFIX] == _METADATA:
            return _context(headers)
    return NO_CONTEXT


def _context(headers: Headers) -> RequestContext:
    named: dict[bytes, str] = {}
    metadata: dict[str, str] = {}
    for name, value in headers:
        try:
            if name in _CONTEXT_HEADERS:
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
        forwarded=any(name == _VIA for name, _ in headers),  # whatever its bytes
        coding=_coding(named),
        metadata=MappingProxyType(metadata),
    )


def _coding(named: Mapping[bytes, str]) -> str | None:
    given = [named[name].lower() for name in (_CODING, _BODY_COMPRESSED) if name in named]
    return ", ".join(coding for coding in given if coding != "identity") or None


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
