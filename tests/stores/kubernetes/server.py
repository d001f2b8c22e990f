"""An API server on a loopback port, over TLS, that lets in whoever has its token.

It serves the two requests that the product makes the way the real one does, and can do to them all that
happens to them in life: restart, fall silent, forget, refuse, be busy.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

import trustme

from gateway.loop.tasks import Tasks
from tests.stores.kubernetes.cluster import Cluster, Object, Status, selector

PATHS = {"pods": ["api", "v1"], "endpointslices": ["apis", "discovery.k8s.io", "v1"]}


@dataclass(frozen=True)
class Asked:
    """A request that arrived."""

    path: str
    query: dict[str, str]
    token: str

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") == "true"


class Watch:
    """An open watch, and how far it is."""

    def __init__(self, asked: Asked, resource: str, namespace: str | None, version: int) -> None:
        self.asked = asked
        self.resource = resource
        self.notices: list[Object] = []
        self.woken = asyncio.Event()
        self._namespace = namespace
        self._matches = selector(asked.query.get("labelSelector", ""))
        self._version = version

    def emit(self, event: Object) -> None:
        self.notices.append(event)
        self.woken.set()

    def advance(self, cluster: Cluster) -> list[Object]:
        """Return the events since the last call. Raises Status."""
        events = cluster.events(self.resource, self._namespace, self._matches, self._version)
        self._version = cluster.version
        return events


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
        self._watches: set[Watch] = set()
        self.port = 0
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(self._tls)
        self._server: asyncio.Server | None = None
        self._tasks = Tasks()
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def watches(self) -> list[Asked]:
        return [each for each in self.asked if each.is_watch]

    @property
    def lists(self) -> list[Asked]:
        return [each for each in self.asked if not each.is_watch]

    async def start(self) -> None:
        """Listen, after a stop at the same port again."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Abort all connections and accept no more."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await self._tasks.stop()

    @property
    def watching(self) -> int:
        """The number of open watches."""
        return len(self._watches)

    def bookmark(self) -> None:
        """Send a bookmark to all watches that allow bookmarks."""
        for watch in self._watches:
            mark = {"kind": watch.resource, "metadata": {"resourceVersion": str(self.cluster.version)}}
            if watch.asked.query.get("allowWatchBookmarks") == "true":
                watch.emit({"type": "BOOKMARK", "object": mark})

    def emit(self, event: Object) -> None:
        """Send ``event`` to all watches; one of type ERROR ends them, as in Kubernetes."""
        for watch in self._watches:
            watch.emit(event)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.spawn(self._serve(reader, writer), "connection")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    await self._answer(await reader.readuntil(b"\r\n\r\n"), writer)
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _answer(self, head: bytes, writer: asyncio.StreamWriter) -> None:
        if self.silent:
            await asyncio.get_running_loop().create_future()
        target, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        parts = urlsplit(target.split()[1])
        token = headers.get("authorization", "").removeprefix("Bearer ")
        asked = Asked(parts.path, dict(parse_qsl(parts.query, keep_blank_values=True)), token)
        self.asked.append(asked)
        try:
            if self.faults:
                status, more = self.faults.pop(0)
                return await _reply(writer, status.code, status.body, more)
            resource, namespace = self._admit(asked)
            if asked.is_watch:
                return await self._watch(asked, resource, namespace, writer)
            await _reply(writer, 200, self.cluster.page(resource, namespace, asked.query))
        except Status as status:
            await _reply(writer, status.code, status.body)

    def _admit(self, asked: Asked) -> tuple[str, str | None]:
        """Return the collection and namespace of a request. Raises Status."""
        if asked.token != self.token:
            raise Status(401, "Unauthorized", "Unauthorized")
        resource, namespace = _collection(asked.path)
        verb = "watch" if asked.is_watch else "list"
        if verb not in self.verbs or resource not in self.kinds:
            who = "system:serviceaccount:default:tito-gateway"
            text = f'{resource} is forbidden: User "{who}" cannot {verb} resource "{resource}"'
            raise Status(403, "Forbidden", text, resource=resource)
        return resource, namespace

    async def _watch(
        self, asked: Asked, resource: str, namespace: str | None, writer: asyncio.StreamWriter
    ) -> None:
        watch = Watch(asked, resource, namespace, int(asked.query["resourceVersion"]))
        first = watch.advance(self.cluster)  # may refuse, before the head is sent
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        limit = float(asked.query["timeoutSeconds"]) if self.watch_limit is None else self.watch_limit
        self._watches.add(watch)
        self.cluster.listeners.add(watch.woken)
        try:
            await _send(writer, self.garbage, *first)
            async with asyncio.timeout(limit):
                await self._stream(watch, writer)
        except TimeoutError:
            pass
        finally:
            self.cluster.listeners.discard(watch.woken)
            self._watches.discard(watch)
        if self.silent:
            await asyncio.get_running_loop().create_future()
        writer.write(b"0\r\n\r\n")

    async def _stream(self, watch: Watch, writer: asyncio.StreamWriter) -> None:
        while True:
            watch.woken.clear()
            if not self.silent:
                events = [*watch.advance(self.cluster), *watch.notices]
                watch.notices.clear()
                await _send(writer, b"", *events)
                if any(event["type"] == "ERROR" for event in events):
                    return
            await watch.woken.wait()


def _collection(path: str) -> tuple[str, str | None]:
    parts = path.strip("/").split("/")
    for resource, prefix in PATHS.items():
        if parts == [*prefix, resource]:
            return resource, None
        if parts[:-2] == [*prefix, "namespaces"] and parts[-1] == resource:
            return resource, parts[-2]
    raise Status(404, "NotFound", "the server could not find the requested resource")


async def _send(writer: asyncio.StreamWriter, raw: bytes, *events: Object) -> None:
    data = raw + b"".join(json.dumps(event, ensure_ascii=False).encode() + b"\n" for event in events)
    if data:
        writer.write(b"%x\r\n%s\r\n" % (len(data), data))
    await writer.drain()


async def _reply(
    writer: asyncio.StreamWriter, status: int, body: Object, more: dict[str, str] | None = None
) -> None:
    data = json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Content-Length": str(len(data)), **(more or {})}
    lines = [f"HTTP/1.1 {status} Some", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    writer.write("\r\n".join(lines).encode() + data)
    await writer.drain()
