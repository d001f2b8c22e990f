"""Which handler gets a request of an inference route.

Owns: the handlers by path and method, and the match of paths with wildcards. Must never enter: the control
plane's routes, the phases of an exchange.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from gateway.catalog import Endpoint, template_pattern
from gateway.downstream.client import Client
from gateway.proxy.handler import GenerateHandler

#: A path that a wildcard may match: an engine, or a proxy before it, reads it in one way only.
_PLAIN = re.compile(r"(?:/(?!\.\.?(?:/|$))[A-Za-z0-9._~!$&'()*+,;=:@-]+)+")


class RouteTable:
    """The inference routes. Exact paths precede those with wildcards, of which the longer ones precede.

    ``reserved`` are the paths of the control plane, as templates of FastAPI: no wildcard matches them.
    """

    def __init__(
        self,
        endpoints: Iterable[Endpoint],
        make: Callable[[Endpoint], GenerateHandler],
        reserved: Iterable[str] = (),
    ) -> None:
        self._make = make
        reserved = tuple(reserved)
        self._reserved = [template_pattern(path) for path in reserved]
        self._reserved_paths = {path for path in reserved if "{" not in path}
        self._endpoints: dict[str, Endpoint] = {}
        self._handlers: dict[tuple[str, str], GenerateHandler] = {}
        patterns: list[Endpoint] = []
        for endpoint in endpoints:
            if endpoint.is_pattern:
                patterns.append(endpoint)
                continue
            self._endpoints[endpoint.path] = endpoint
            for method in endpoint.methods:
                self._handlers[endpoint.path, method] = make(endpoint.at(method, endpoint.path))
        patterns.sort(key=lambda endpoint: -len(endpoint.path))
        #: The endpoints whose paths have wildcards, with what their paths match.
        self.patterns = [(_pattern(endpoint.path), endpoint) for endpoint in patterns]

    @property
    def exact(self) -> Mapping[tuple[bytes, bytes], Callable[[Client], None]]:
        """What starts an exchange, by path and method, for all paths without a wildcard."""
        return {
            (path.encode(), method.encode()): handler.begin
            for (path, method), handler in self._handlers.items()
        }

    def find(self, path: str) -> Endpoint | None:
        """Return the endpoint of ``path``, whatever the method; None: it is no inference route."""
        if (exact := self._endpoints.get(path)) is not None:
            return exact
        found = next((endpoint for pattern, endpoint in self.patterns if pattern.fullmatch(path)), None)
        if found is None or _PLAIN.fullmatch(path) is None:
            return None
        return None if any(own.fullmatch(path) for own in self._reserved) else found

    def without_slash(self, path: str) -> str:
        """Return ``path``, or the path without the slash at its end if only that is a route."""
        short = path[:-1]
        if not path.endswith("/") or not short or short.endswith("/"):
            return path
        if short in self._endpoints or short in self._reserved_paths:
            return short
        control = [own for own in self._reserved if own.fullmatch(short)]
        if control:
            # Where both match the same templates, the slash is a part of a name.
            return path if all(own.fullmatch(path) for own in control) else short
        return short if self.find(short) else path

    def handler(self, path: str, method: str) -> GenerateHandler | None:
        """Return the handler of a request; None: no inference route has this path and method."""
        if (exact := self._handlers.get((path, method))) is not None:
            return exact
        endpoint = self.find(path)
        if endpoint is None or not endpoint.is_pattern or method not in endpoint.methods:
            return None
        return self._make(endpoint.at(method, path))


def _pattern(path: str) -> re.Pattern[str]:
    *segments, last = path.split("/")
    named = ["[^/]+" if segment == "*" else re.escape(segment) for segment in segments]
    return re.compile("/".join([*named, ".+" if last == "*" else re.escape(last)]))
