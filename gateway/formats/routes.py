"""The routes of a dialect: what its engines serve, and to which workers the gateway sends each of them.

Owns: the records in which a format declares its endpoint, abort routes, control calls and relayed routes.
Must never enter: a dialect, I/O, sending a call.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

#: The methods of a relayed route with a wildcard, unless it names others.
ANY_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
#: Kinds of pauses; a worker is cordoned for each until a call of the same kind resumes it.
PAUSES = ("generation", "memory")
#: Relayed routes of the APIs that engines of several dialects serve alike.
SHARED_APIS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/responses/*",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/embeddings",
    "/v1/score",
    "/v1/rerank",
    "/v1/audio/*",
    "/tokenize",
    "/detokenize",
    "/classify",
)

_ROUTE = re.compile(r"(?:(?P<methods>[A-Z]+(?:\|[A-Z]+)*) +)?(?P<path>/\S+)")
_PATH = re.compile(r"(?:/(?:\*|[^/:*?#%\s][^/?#%\s]*))+", re.ASCII)


class Recipients(StrEnum):
    """The workers that one call is sent to, of those that speak the dialect."""

    ALL = "all"
    #: The worker that the call names, or the only one of the fleet. A call that names none of several fails.
    ONE = "one"
    #: Any worker that serves; the next one if it fails. For GET only.
    ANY = "any"


@dataclass(frozen=True, slots=True)
class ControlCall:
    """A call that is not inference, forwarded as the client sent it.

    ``pauses`` is the kind of pause it begins, one of PAUSES, ``resumes`` the kind it ends. ``changes``: it
    may change what the worker serves (models, adapters, weights), so the worker is asked to describe itself
    before the call is answered. ``secret`` applies to ``Recipients.ANY``: the answer may show how an engine
    was started, so it requires the admin key; without it an API key is enough. All other calls require the
    admin key.
    """

    path: str
    methods: tuple[str, ...] = ("POST",)
    to: Recipients = Recipients.ALL
    pauses: str | None = None
    resumes: str | None = None
    changes: bool = False
    secret: bool = False


@dataclass(frozen=True, slots=True)
class RelayedRoute:
    """An inference route that is forwarded without inspection.

    A segment ``*`` of ``path`` stands for any one segment, at its end for one or more.
    """

    path: str
    methods: tuple[str, ...] = ("POST",)

    @classmethod
    def parse(cls, text: str) -> RelayedRoute:
        """Parse ``PATH`` or ``METHOD|METHOD PATH``. Raises ValueError.

        Without methods a path has POST, one with ``*`` has ANY_METHODS.
        """
        methods, path = _parse_route(text)
        if path.startswith("/*"):
            raise ValueError(
                f"{path!r} must begin with a name: '*' for all of a worker's routes would open some"
            )
        return cls(path, methods or (ANY_METHODS if "*" in path.split("/") else ("POST",)))


def parse_control_call(text: str) -> ControlCall:
    """Parse ``TO=PATH`` or ``TO=METHOD|METHOD PATH``, TO one of Recipients. Raises ValueError.

    Without methods a call has POST, one to any worker GET.
    """
    name, _, route = text.partition("=")
    if name not in set(Recipients):
        raise ValueError(f"{text!r} must begin with all=, one= or any=")
    to = Recipients(name)
    methods, path = _parse_route(route)
    if "*" in path.split("/"):
        raise ValueError(f"{path!r} must be one path, without '*'")
    if to is Recipients.ANY and methods not in ((), ("GET",)):
        raise ValueError(f"{text!r}: a call to any worker is for GET only")
    return ControlCall(path, methods or (("GET",) if to is Recipients.ANY else ("POST",)), to)


def _parse_route(text: str) -> tuple[tuple[str, ...], str]:
    """Return the methods, () if there are none, and the path. Raises ValueError."""
    match = _ROUTE.fullmatch(text)
    if match is None or not match["path"].isascii() or _PATH.fullmatch(match["path"]) is None:
        raise ValueError(f"{text!r} must be a plain path that starts with '/', with methods before it if any")
    methods = match["methods"]
    return tuple(methods.split("|")) if methods else (), match["path"]


@dataclass(frozen=True, slots=True)
class Routes:
    """The routes of a dialect, by the paths of its engines.

    ``path`` is the default path of its generate endpoint (None: it must always be configured), ``methods``
    are its HTTP methods. ``aborts`` are the paths of its clients' abort calls. ``control`` are its control
    calls. ``loads`` are paths whose GET reports the load; the answers of all workers are merged. ``relayed``
    are other inference routes, forwarded to one worker without inspection, as ``RelayedRoute.parse`` takes
    them. ``creating`` are those of their paths whose replies name what the worker created, besides paths with
    further ones below them.
    """

    path: str | None = None
    methods: tuple[str, ...] = ("POST",)
    aborts: tuple[str, ...] = ()
    control: tuple[ControlCall, ...] = ()
    loads: tuple[str, ...] = ()
    relayed: tuple[str, ...] = ()
    creating: tuple[str, ...] = ()

    def fixed_paths(self) -> Iterator[str]:
        """Yield the paths that cannot be configured."""
        yield from self.aborts
        yield from (call.path for call in self.control)
        yield from self.loads
        yield from (RelayedRoute.parse(text).path for text in self.relayed)


def calls(to: Recipients, *paths: str, changes: bool = False) -> tuple[ControlCall, ...]:
    """Return one control call per path: GET for ``Recipients.ANY``, else POST."""
    methods = ("GET",) if to is Recipients.ANY else ("POST",)
    return tuple(ControlCall(path, methods, to, changes=changes) for path in paths)
