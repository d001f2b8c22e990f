"""The ASGI application of the gateway.

Owns: which handler gets a request: that of an inference endpoint, or the control plane. Must never enter: the
construction of components, the phases of an exchange.
"""

from __future__ import annotations

from collections.abc import Callable

from gateway.catalog import Endpoint
from gateway.control.replies import failure
from gateway.downstream.asgi import AsgiApp, Receive, Scope, Send
from gateway.downstream.asgi_client import AsgiClient
from gateway.downstream.client import Client
from gateway.downstream.lifespan import lifespan
from gateway.downstream.limits import ClientLimits
from gateway.downstream.start_pacing import StartPacer
from gateway.errors import LoopDetected, MethodNotAllowed
from gateway.proxy.services import Services
from gateway.security.file_changes import Refreshable
from gateway.upstream.via import LOOPED
from gateway.wiring.background import Background
from gateway.wiring.route_table import RouteTable


class Gateway:
    """The ASGI application of one gateway process.

    Its HTTP listener (gateway.downstream) uses ``start_pacer``, ``write_batch``, ``unreachable_peers``,
    ``limits``, ``direct_route``, and ``limit_reached``, which counts a limit that a client exceeded.
    ``lifecycle`` and ``fleet`` are for the process around it.
    """

    def __init__(
        self,
        routes: RouteTable,
        control: AsgiApp,
        services: Services,
        background: Background,
        limits: ClientLimits,
    ) -> None:
        self._routes = routes
        self._direct = routes.exact
        self._control = control
        self._via = services.via
        self._background = background
        self.start_pacer = StartPacer()
        self.limits = limits
        self.limit_reached = services.metrics.limit_reached
        self.write_batch = services.fleet.connector.write_batch
        self.unreachable_peers = services.fleet.connector.unreachable_peers
        self.lifecycle = services.lifecycle
        self.fleet = services.fleet

    def limit_connections(self, clients: int, own: int, files: int) -> None:
        """Allow at most ``clients`` connections of clients, and ``own`` of each kind of the gateway's own.

        With ``files`` open files, connections over the limit are closed at once.
        """
        most = min(self.limits.connections or clients, clients)
        self.limits = self.limits._replace(connections=most, files=files)
        self.fleet.quotas.limit(own)

    def keep_fresh(self, thing: Refreshable) -> None:
        """Refresh ``thing``, too, whenever its file changes, while the application is served."""
        self._background.refresh(thing)

    def direct_route(self, path: bytes, method: bytes) -> Callable[[Client], None] | None:
        """Return the function that starts an exchange without ASGI; None: call the ASGI application."""
        begin = self._direct.get((path, method))
        if begin is None and (self._routes.patterns or path.endswith(b"/")):
            name = self._routes.without_slash(path.decode("latin-1"))
            handler = self._routes.handler(name, method.decode("latin-1"))
            return None if handler is None else handler.begin
        return begin

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path = self._routes.without_slash(scope["path"])
            if path != scope["path"]:
                scope = {**scope, "path": path, "raw_path": path.encode()}
            if scope["method"] == "OPTIONS" and self.limits.cross_origin is not None:
                preflight = self.limits.cross_origin.preflight(scope["headers"])
                if preflight is not None:
                    return await AsgiClient(scope, receive, send).reply(204, preflight, b"")
            endpoint = self._routes.find(scope["path"])
            if endpoint is None:
                if self._via.passed(scope["headers"]):
                    return await _refuse_loop(scope, receive, send)
                return await self._control(scope, receive, send)
            handler = self._routes.handler(scope["path"], scope["method"])
            if handler is not None:
                return await handler(scope, receive, send)
            return await _refuse_method(endpoint, AsgiClient(scope, receive, send))
        if scope["type"] == "lifespan":
            return await lifespan(receive, send, self._background)
        raise RuntimeError(f"unsupported scope {scope['type']!r}")


async def _refuse_loop(scope: Scope, receive: Receive, send: Send) -> None:
    error = LoopDetected(LOOPED)
    await failure(error.status, error.message)(scope, receive, send)


async def _refuse_method(endpoint: Endpoint, client: Client) -> None:
    methods = ", ".join(endpoint.methods)
    error = MethodNotAllowed(f"the methods of {endpoint.path} are {methods}")
    reply = endpoint.format.render(error)
    await client.reply(reply.status, [*reply.headers, (b"allow", methods.encode())], reply.body)
