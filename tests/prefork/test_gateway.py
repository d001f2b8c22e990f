"""Several processes as one gateway, with real processes, sockets and signals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from pathlib import Path

import httpx
import pytest

from gateway.prefork.frames import Verb
from gateway.prefork.hub import ANSWER_TIMEOUTS
from gateway.process.server import listen
from gateway.sim import Reply, SimConfig, SimServer
from tests.prefork.running import Several, ask, generate, metric, request, several
from tests.support.gateway import RawClient, arrived, eventually, generates, until
from tests.support.processes import refuses, run

SLOW = SimConfig(token_delay=0.05)


async def stream(gateway: Several, pid: int, tokens: int = 20, **extra: object) -> RawClient:
    """Start a stream in the process ``pid`` and return after its first event."""
    client = await gateway.client_of(pid)
    client.request("/generate", request(tokens, True, **extra))
    await client.head()
    await client.reader.readuntil(b"\n\n")
    return client


async def rest_of(client: RawClient) -> bytes:
    """Return the rest of a stream."""
    rest = b""
    while data := await client.reader.read(65536):
        rest += data
        if b"[DONE]" in data:
            break
    client.leave()
    return rest


async def scrape(gateway: Several, pid: int) -> bytes:
    status, text = await gateway.get("/metrics", pid)
    assert status == 200
    return text


def is_complete(rest: bytes) -> bool:
    """Whether a stream ended as its engine ended it."""
    return b"[DONE]" in rest and b'"error"' not in rest


async def test_any_process_shows_the_exact_metrics_of_all() -> None:
    async with SimServer("sglang", SimConfig()) as sim, several(sim.url) as gateway:
        for count, pid in enumerate(gateway.pids, 1):
            client = await gateway.client_of(pid)
            assert [await generate(client) for _ in range(3)] == [200] * 3
            client.leave()
            for asked in gateway.pids:
                text = await scrape(gateway, asked)
                for name in ("requests", "worker_requests", "requests_started"):
                    assert metric(text, f"{name}_total") == 3 * count
                assert metric(text, "request_duration_seconds_count") == 3 * count
                assert metric(text, "output_tokens_total") == 9 * count
        assert metric(text, "processes") == 2
        assert metric(text, "process_restarts_total") == 0
        assert metric(text, "process_resident_memory_bytes") > 0
        assert text.decode().count("\nprocess_cpu_seconds_total ") == 1


async def test_load_in_workers_health_and_metrics_is_that_of_all_processes() -> None:
    async with SimServer("sglang", SLOW) as sim, several(sim.url) as gateway:
        running = [await stream(gateway, pid, 200) for pid in gateway.pids]
        for pid in gateway.pids:
            _, workers = await gateway.get("/workers", pid)
            assert [worker["load"] for worker in json.loads(workers)["workers"]] == [2]
            _, health = await gateway.get("/health", pid)
            assert [worker["in_flight"] for worker in json.loads(health)["instances"]] == [2]
            assert json.loads(health)["processes"] == {"wanted": 2, "serving": 2}
            text = await scrape(gateway, pid)
            assert metric(text, "worker_inflight_requests") == metric(text, "active_requests") == 2
        for client in running:
            client.leave()


async def test_scrape_does_not_wait_for_a_process_that_is_stuck() -> None:
    """Its last counts are used."""
    assert ANSWER_TIMEOUTS[Verb.METRICS] < 0.1
    async with SimServer("sglang", SimConfig()) as sim, several(sim.url) as gateway:
        stuck, other = gateway.pids
        await generate(await gateway.client_of(stuck))
        asker = await gateway.client_of(other)
        await ask(asker, "/metrics")
        os.kill(stuck, signal.SIGSTOP)
        status, text = await ask(asker, "/metrics")
        assert status == 200 and metric(text, "requests_total") == 1


async def test_killed_process_is_replaced_and_its_counts_stay() -> None:
    """Meanwhile the others serve, the gateway is ready, and the requests of that process count as failed."""
    async with SimServer("sglang", SLOW) as sim, several(sim.url) as gateway:
        victim, other = gateway.pids
        for pid in (victim, other):
            client = await gateway.client_of(pid)
            assert await generate(client) == 200
        lost = await stream(gateway, victim, 1000)
        assert metric(await scrape(gateway, other), "active_requests") == 1
        os.kill(victim, signal.SIGKILL)
        assert await generate(client) == 200
        assert (await ask(client, "/ready"))[0] == 200
        assert b"[DONE]" not in await rest_of(lost)

        async def replaced() -> bool:
            _, health = await ask(client, "/health")
            return json.loads(health)["processes"]["serving"] == 2 and victim not in gateway.pids

        await eventually(replaced)
        for pid in gateway.pids:
            text = await scrape(gateway, pid)
            assert metric(text, "requests_total") == 4
            assert metric(text, "requests_started_total") == 4
            assert metric(text, "active_requests") == 0
            assert metric(text, "failures_total") == 1
            assert metric(text, "process_restarts_total") == 1
        for pid in gateway.pids:
            assert await generate(await gateway.client_of(pid)) == 200
        assert f"process {victim} ended by signal 9" in gateway.log.read_text()


async def test_connection_that_waits_for_a_killed_process_is_served_by_its_successor() -> None:
    """Its listening socket is kept open."""
    async with SimServer("sglang", SimConfig()) as sim, several(sim.url) as gateway:
        for pid in gateway.pids:
            os.kill(pid, signal.SIGSTOP)
        clients = [await gateway.connect() for _ in range(8)]
        for pid in gateway.pids:
            os.kill(pid, signal.SIGKILL)
        assert [await generate(client) for client in clients] == [200] * 8


async def test_sigterm_drains_every_process() -> None:
    """Running streams finish; until then each process refuses new requests, and none is ready."""
    async with SimServer("sglang", SLOW) as sim, several(sim.url) as gateway:
        short, long = gateway.pids
        kept = [await gateway.client_of(pid) for pid in (short, long)]
        running = [await stream(gateway, short, 8), await stream(gateway, long, 40)]
        gateway.process.send_signal(signal.SIGTERM)

        async def none_ready() -> bool:
            return {(await ask(client, "/ready"))[0] for client in kept} == {503}

        await eventually(none_ready)
        assert b'"error"' not in await rest_of(running[0])
        # The first process has no exchanges left, but still gets new connections.
        late = await gateway.client_of(short)
        assert await generate(late) == 503
        assert (await ask(kept[0], "/live"))[0] == 200
        assert b'"error"' not in await rest_of(running[1])
        assert await gateway.ends() == 0
        assert len(generates(sim)) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
async def test_streams_finish_after_a_signal_to_all_and_after_the_supervisor_was_killed(number: int) -> None:
    """A signal to the process group counts once, as by Ctrl-C. Without a supervisor the port is free soon."""
    async with SimServer("sglang", SLOW) as sim, several(sim.url) as gateway:
        pids = gateway.pids
        running = [await stream(gateway, pid, 12) for pid in pids]
        if number == signal.SIGINT:
            os.killpg(gateway.process.pid, number)
        else:
            gateway.process.kill()
            assert await gateway.ends() == -number
            await until(lambda: refuses(gateway.port))
        assert all([is_complete(await rest_of(client)) for client in running])
        await until(lambda: not any(_lives(pid) for pid in pids))
        assert await gateway.ends() == (0 if number == signal.SIGINT else -number)


@pytest.mark.parametrize("grace", ["30", "0.3"])
async def test_second_signal_and_the_end_of_the_grace_time_end_all_at_once(grace: str) -> None:
    """With an error event to each client, and an abort at the engine."""
    limit = {"DYN_HTTP_GRACEFUL_SHUTDOWN_TIMEOUT_SECS": grace}
    async with SimServer("sglang", SLOW) as sim, several(sim.url, **limit) as gateway:  # type: ignore[arg-type]
        running = [await stream(gateway, pid, 2000) for pid in gateway.pids]
        gateway.process.send_signal(signal.SIGTERM)
        await until(lambda: "draining" in gateway.log.read_text())
        if grace == "30":
            gateway.process.send_signal(signal.SIGINT)
        for client in running:
            assert b'"error"' in await rest_of(client)
        assert await gateway.ends() == 0
        assert len(sim.aborts) == 2


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_abort_reaches_an_id_that_another_process_holds() -> None:
    """By its id, and by abort_all; there is one result per worker."""
    async with SimServer("sglang", SLOW) as sim, several(sim.url) as gateway:
        here, there = gateway.pids
        asker = await gateway.client_of(here)
        one = await stream(gateway, there, 2000, rid="job-1")
        other = await stream(gateway, there, 2000, rid="job-10")
        own = await stream(gateway, here, 2000, rid="job-1")
        status, body = await ask(asker, "/abort_request", b'{"rid":"job-1"}', "POST")
        assert status == 200
        assert json.loads(body)["results"] == [{"worker": sim.url, "aborted": 2, "error": None}]
        for client in (one, own):
            assert b'"abort"' in await rest_of(client)
        await other.reader.readuntil(b"\n\n")  # it goes on
        # The engine only acknowledges the two calls it gets at first, for all and for the id. Else it could
        # end the request before the process looks for it.
        sim.behave(Reply(), times=2, path="/abort_request")
        _, body = await ask(asker, "/abort_request", b'{"abort_all":true}', "POST")
        assert json.loads(body)["aborted"] == 1
        await ask(asker, "/abort_request", b'{"abort_all":true}', "POST")
        assert b'"abort"' in await rest_of(other)


async def test_engine_gets_the_clients_id_unless_another_process_has_one_that_clashes() -> None:
    """The same or a longer one; each client sees its own. The one can be aborted at the engine directly."""
    async with SimServer("sglang", SLOW) as sim, several(sim.url) as gateway:
        here, there = gateway.pids
        first = await stream(gateway, here, 2000, rid="job-1")
        await stream(gateway, there, rid="job-2")
        running = [await stream(gateway, there, rid=rid) for rid in ("job-1", "job-10")]
        await arrived(4, sim)
        own_1, own_2, *private = (json.loads(arrival.body)["rid"] for arrival in generates(sim))
        assert (own_1, own_2) == ("job-1", "job-2") and not {*private} & {"job-1", "job-10"}
        for client, rid in zip(running, ("job-1", "job-10"), strict=True):
            rest = await rest_of(client)
            assert f'"id":"{rid}"'.encode() in rest and not any(each.encode() in rest for each in private)
        async with httpx.AsyncClient(base_url=sim.url, trust_env=False) as engine:
            await engine.post("/abort_request", json={"rid": "job-1"})
        assert b'"abort"' in await rest_of(first)


async def test_log_lines_of_several_processes_are_never_mixed() -> None:
    """However long they are and however slowly they are read; each names its process."""
    out, into = os.pipe()
    async with SimServer("sglang", SimConfig()) as sim, several(sim.url, stdout=into) as gateway:
        os.close(into)
        session, pids = "s" * 250, gateway.pids
        for pid in pids:
            client = await gateway.client_of(pid)
            for number in range(150):
                body = request(rid=f"{number}-" + "\u00e9" * 250)
                client.request("/generate", body, headers=(("x-session-id", session),))
            for _ in range(150):
                await client.reply()
        gateway.process.send_signal(signal.SIGTERM)
        written = await asyncio.to_thread(_read_all, out)
        assert len(written) > 1 << 18
        lines = [json.loads(line) for line in written.splitlines()]
        assert [line["process"] for line in lines].count(pids[0]) == 150
        assert {line["process"] for line in lines} == set(pids)
        assert f"INFO [{pids[0]}] gateway" in gateway.log.read_text()
        assert await gateway.ends() == 0


def _read_all(fd: int) -> bytes:
    with open(fd, "rb") as pipe:
        return pipe.read()


def test_port_in_use_and_bad_setting_are_one_line_as_with_one_process() -> None:
    """Even if the owner of the port has set SO_REUSEPORT, by which both would share the requests."""
    with listen("127.0.0.1", 0, 10) as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        port = str(taken.getsockname()[1])
        for code, named, *flags in (
            (1, port, "--host", "127.0.0.1", "--port", port),
            (2, "--worker", "--port", "0", "--worker", "none=http://127.0.0.1:1"),
        ):
            ended = run("serve", "--processes", "2", *flags)
            assert ended.returncode == code
            assert len(ended.stderr.splitlines()) == 1 and named in ended.stderr


async def test_registration_and_removal_in_one_process_apply_to_all() -> None:
    async with SimServer("sglang", SimConfig()) as sim, SimServer("sglang", SimConfig()) as other:
        async with several(sim.url) as gateway:
            first, second = [await gateway.client_of(pid) for pid in gateway.pids]
            added = json.dumps({"url": other.url}).encode()
            assert (await ask(first, "/workers", added, "POST"))[0] == 202

            async def lists(*urls: str) -> bool:
                _, body = await ask(second, "/list_workers")
                return set(json.loads(body)["urls"]) == set(urls)

            await eventually(lambda: lists(sim.url, other.url))
            path = f"/remove_worker?url={other.url}"
            assert (await ask(first, path, b"", "POST"))[0] == 200
            await eventually(lambda: lists(sim.url))
