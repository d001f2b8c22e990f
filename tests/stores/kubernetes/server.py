"""An API server on a loopback port, over TLS, that lets in whoever has its token.

It serves the two requests that the product makes the way the real one does, and can do to them all that
happens to them in life: restart, fall silent, forget, refuse, be busy.
"""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlsplit

import trustme

from gateway.loop.tasks import Tasks
from tests.stores.kubernetes.cluster import Cluster, Status
from tests.stores.kubernetes.things import Object

#: The namespace if there is one, and the kind.
PATH = re.compile(r"/(?:api|apis/discovery\.k8s\.io)/v1(?:/namespaces/([^/]+))?/(pods|endpointslices)")


@dataclass(eq=False)
class Asked:
    """A request that arrived. ``notices`` are sent to it if it is a watch."""

    path: str
    query: dict[str, str]
    token: str
    notices: list[Object] = field(default_factory=list)
    woken: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") == "true"


class ApiServer:
    """A simulated API server. ``asked`` has all requests; each of ``faults`` is the reply to one request."""

    def __init__(self, authority: trustme.CA) -> None:
        self.cluster = Cluster()
        self.token = "first-token"
        #: What the holder of the token may do, and with which objects, as a role lists them.
        self.verbs, self.kinds = {"list", "watch"}, {"pods", "endpointslices"}
        self.asked: list[Asked] = []
        self.faults: list[tuple[Status, dict[str, str]]] = []
        self.silent = False
        #: Seconds after which a watch is closed whatever it asked for; None: what it asked for.
        self.watch_limit: float | None = None
        #: What is sent to each watch as it begins, instead of events.
        self.garbage = b""
        self.port = 0
        self._open: set[Asked] = set()
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(self._tls)
        self._server: asyncio.Server | None = None
        self._tasks = Tasks()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def watches(self) -> list[Asked]:
        return [each for each in self.asked if each.is_watch]

    @property
    def lists(self) -> list[Asked]:
        return [each for each in self.asked if not each.is_watch]

    @property
    def watching(self) -> int:
        """The number of open watches."""
        return len(self._open)

    async def start(self) -> None:
        """Listen, after a stop at the same port again."""
        self._server = await asyncio.start_server(
            lambda *streams: self._tasks.spawn(self._serve(*streams), "connection"),
            "127.0.0.1",
            self.port,
            ssl=self._tls,
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Abort all connections and accept no more."""
        if self._server is not None:
            self._server.close()
        await self._tasks.stop()

    def bookmark(self) -> None:
        """Send a bookmark to all watches, which must allow bookmarks."""
        assert all(watch.query.get("allowWatchBookmarks") == "true" for watch in self._open)
        self.emit(
            {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(self.cluster.version)}}}
        )

    def emit(self, event: Object) -> None:
        """Send ``event`` to all watches; one of type ERROR ends them, as in Kubernetes."""
        for watch in self._open:
            watch.notices.append(event)
            watch.woken.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    await self._answer(await reader.readuntil(b"\r\n\r\n"), writer)
        finally:
            writer.transport.abort()

    async def _answer(self, head: bytes, writer: asyncio.StreamWriter) -> None:
        await self._stay_silent()
        parts = urlsplit(head.split()[1].decode())
        token = re.search(r"(?i)\r\nauthorization: Bearer (\S*)", head.decode())
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        asked = Asked(parts.path, query, token[1] if token else "")
        self.asked.append(asked)
        headers: dict[str, str] = {}
        try:
            if self.faults:
                status, headers = self.faults.pop(0)
                raise status
            kind, namespace = self._admit(asked)
            if asked.is_watch:
                return await self._watch(asked, kind, namespace, writer)
            code, body = 200, self.cluster.page(kind, namespace, query)
        except Status as status:
            code, body = status.code, status.body
        data = json.dumps(body).encode()
        lines = "".join(f"\r\n{name}: {value}" for name, value in headers.items())
        writer.write(f"HTTP/1.1 {code} Some\r\nContent-Length: {len(data)}{lines}\r\n\r\n".encode() + data)
        await writer.drain()

    async def _stay_silent(self) -> None:
        if self.silent:
            await asyncio.get_running_loop().create_future()

    def _admit(self, asked: Asked) -> tuple[str, str | None]:
        """Return the kind and the namespace of a request. Raises Status."""
        if asked.token != self.token:
            raise Status(401, "Unauthorized", "Unauthorized")
        if (path := PATH.fullmatch(asked.path)) is None:
            raise Status(404, "NotFound", "the server could not find the requested resource")
        namespace, kind = path.groups()
        verb = "watch" if asked.is_watch else "list"
        if verb not in self.verbs or kind not in self.kinds:
            who = "system:serviceaccount:default:tito-gateway"
            text = f'{kind} is forbidden: User "{who}" cannot {verb} resource "{kind}"'
            raise Status(403, "Forbidden", text)
        return kind, namespace

    async def _watch(
        self, asked: Asked, kind: str, namespace: str | None, writer: asyncio.StreamWriter
    ) -> None:
        version = int(asked.query["resourceVersion"])

        def advance() -> list[Object]:
            nonlocal version
            events = self.cluster.events(kind, namespace, asked.query, version)
            version = self.cluster.version
            return events

        first = advance()  # may refuse, before the head is sent
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        limit = float(asked.query["timeoutSeconds"]) if self.watch_limit is None else self.watch_limit
        self._open.add(asked)
        self.cluster.listeners.add(asked.woken)
        try:
            await _send(writer, self.garbage, *first)
            async with asyncio.timeout(limit):
                while not any(event["type"] == "ERROR" for event in first):
                    await asked.woken.wait()
                    asked.woken.clear()
                    first = [] if self.silent else [*advance(), *asked.notices]
                    if not self.silent:
                        asked.notices.clear()
                    await _send(writer, b"", *first)
        except TimeoutError:
            pass
        finally:
            self.cluster.listeners.discard(asked.woken)
            self._open.discard(asked)
        await self._stay_silent()
        writer.write(b"0\r\n\r\n")


async def _send(writer: asyncio.StreamWriter, raw: bytes, *events: Object) -> None:
    data = raw + b"".join(json.dumps(event, ensure_ascii=False).encode() + b"\n" for event in events)
    if data:
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))
    await writer.drain()
