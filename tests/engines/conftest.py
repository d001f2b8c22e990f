"""Fixtures: real engines and gateways in front of them for the whole run, stopped at its end in any case."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from scripts.engines import install, paths, servers
from tests.clients.site import EnginesOf, Site, gateway_process, site_at
from tests.engines.front import Front, running_requests, wait_for

START_WITHIN = 30.0
PATHS = {"sglang": "/generate", "vllm": "/inference/v1/generate"}

Servers = dict[str, servers.Server]
Serve = Callable[[str, str], str]


@pytest.fixture(scope="session")
def engines() -> Iterator[Servers]:
    """Start the servers of every installed engine, by kind.

    They start at the same time and stop with the run, except for servers that were already running: ``python
    -m scripts.engines start`` starts them for several runs.
    """
    kinds = [kind for kind in ("sglang", "sglang-incremental", "vllm") if install.installed(_engine(kind))]
    found = {server.name: server for server in servers.running()}
    with ExitStack() as stack:
        for kind in kinds:
            if kind not in found:
                found[kind] = servers.start(kind)
                stack.callback(found[kind].stop)
        for kind in kinds:
            servers.wait_ready(found[kind])
        yield {kind: found[kind] for kind in kinds}


@pytest.fixture(scope="session")
def serve(engines: Servers) -> Iterator[Serve]:
    """Return a function that starts one gateway for two kinds of server, those that are installed, and
    returns its URL.
    """
    running: dict[tuple[str, ...], str] = {}
    with ExitStack() as stack:

        def url_of(*kinds: str) -> str:
            if kinds not in running:
                workers = [engines[kind].url for kind in kinds if kind in engines]
                log = paths.runs() / f"gateway-{'-'.join(kinds)}.log"
                running[kinds] = stack.enter_context(gateway(workers, log))
            return running[kinds]

        yield url_of


@pytest.fixture(scope="session", params=["sglang", "sglang-incremental"])
def sglang(request: pytest.FixtureRequest, engines: Servers, serve: Serve) -> Front:
    """SGLang in both of its stream modes, one after the other."""
    return _front(request.param, engines, serve)


@pytest.fixture(scope="session")
def vllm(engines: Servers, serve: Serve) -> Front:
    return _front("vllm", engines, serve)


@pytest.fixture(scope="session", params=["sglang", "sglang-incremental", "vllm"])
def front(request: pytest.FixtureRequest, engines: Servers, serve: Serve) -> Front:
    """Each engine with its gateway, one after the other."""
    return _front(request.param, engines, serve)


@pytest.fixture(scope="session")
def open_url() -> Iterator[str]:
    """A gateway for clients that register their engines themselves, with a queue for earlier requests."""
    flags = ("--probe-interval-secs", "0.5", "--queue-seconds", "20")
    with gateway_process(paths.runs() / "gateway-open.log", *flags) as url:
        yield url


@pytest.fixture
async def site(open_url: str) -> AsyncIterator[Site]:
    """The gateway without a worker before and after the test."""
    async with site_at(open_url) as site:
        yield site


@pytest.fixture
async def engines_of(engines: Servers, site: Site, client: httpx.AsyncClient) -> AsyncIterator[EnginesOf]:
    """Return a function that returns servers of a kind, one in each of its stream modes, which are not yet
    workers of ``site`` and have no request left at the end of the test.
    """
    given: list[Front] = []

    async def start(kind: str, count: int) -> Sequence[Front]:
        kinds = {"sglang": ("sglang", "sglang-incremental")[:count], "vllm": ("vllm",)}[kind]
        for each in kinds:
            require(each)
        found = [Front(each, PATHS[kind], engines[each].url, site.url) for each in kinds]
        given.extend(found)
        return found

    yield start
    assert [await running_requests(client, front, 0) for front in given] == [0] * len(given)


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    # Engines close a connection that was idle for 5 s; a connection about to be closed must not be used
    # again.
    limits = httpx.Limits(keepalive_expiry=2)
    async with httpx.AsyncClient(timeout=60, trust_env=False, limits=limits) as client:
        yield client


def require(kind: str) -> None:
    """Skip a test only if the engine cannot be installed on this machine; fail if no one tried to."""
    engine = _engine(kind)
    if install.installed(engine):
        return
    reason = install.why_not(engine)
    if reason is None:
        pytest.fail(
            f"{engine} is not installed: run `make test-engines`, or `python -m scripts.engines install`"
        )
    pytest.skip(f"NOT TESTED, {engine.upper()} CANNOT BE INSTALLED HERE: {reason.splitlines()[-1]}")


@contextmanager
def gateway(workers: list[str], log: Path) -> Iterator[str]:
    """Run ``python -m gateway serve`` for ``workers``; yield its URL once it is ready."""
    with gateway_process(log, *(flag for worker in workers for flag in ("--worker", worker))) as url:
        assert wait_for(lambda: _all_ready(url), START_WITHIN), f"no worker is ready:\n{log.read_text()}"
        yield url


def _all_ready(url: str) -> bool:
    """Return True if all workers are ready."""
    with httpx.Client(trust_env=False) as client:
        workers = client.get(url + "/workers").json()["workers"]
    return all(worker["state"] == "ready" for worker in workers)


def _front(kind: str, engines: Servers, serve: Serve) -> Front:
    """Yield ``kind`` with a gateway that has it as a worker, beside a worker of the other engine."""
    require(kind)
    through = serve("sglang", kind) if kind == "vllm" else serve(kind, "vllm")
    return Front(kind, PATHS[_engine(kind)], engines[kind].url, through)


def _engine(kind: str) -> str:
    return servers.KINDS[kind].engine
