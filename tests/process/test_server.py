"""The gateway's process: signals, port, exit."""

from __future__ import annotations

import asyncio
import json
import platform
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import pytest

from gateway.process import server, shared_folder
from gateway.process.open_files import max_connections_for
from gateway.process.server import PortTaken, ProcessesImpossible, listen, run
from gateway.settings import Settings
from gateway.sim import SimConfig, SimServer
from tests.support.gateway import RawClient, eventually, generates
from tests.support.generate import KINDS, body_of
from tests.support.processes import PATIENCE, spawned
from tests.support.processes import run as start
from tests.support.served import served


@pytest.mark.parametrize("kind", KINDS)
async def test_sigterm_lets_running_requests_finish_and_refuses_new_ones(kind: str) -> None:
    """It is not ready at once; a new request on an open connection gets 503 and a close; exit code 0."""
    async with SimServer(kind, SimConfig(token_delay=0.05)) as sim, served(sim.url) as gateway:
        running = await RawClient.connect(gateway.port)
        running.request(KINDS[kind], json.dumps(body_of(kind, 20, True)).encode())
        await running.head()
        async with httpx.AsyncClient(trust_env=False, base_url=gateway.url) as kept:
            assert (await kept.get("/ready")).status_code == 200
            gateway.process.send_signal(signal.SIGTERM)

            async def not_ready() -> bool:
                return (await kept.get("/ready")).status_code == 503

            await eventually(not_ready)
            reply = await kept.post(KINDS[kind], json=body_of(kind))
            assert (reply.status_code, reply.headers["connection"]) == (503, "close")
            assert "retry-after" in reply.headers
        assert b'"error"' not in await running.reader.readuntil(b"data: [DONE]\n\n")
        running.leave()
        assert await asyncio.wait_for(gateway.process.wait(), PATIENCE) == 0
        assert len(generates(sim)) == 1


async def test_worker_that_wants_another_key_is_named_with_the_reason_once_and_at_the_exit() -> None:
    reason = "it needs an API key"
    async with SimServer("sglang", SimConfig(api_key="right")) as sim:
        variables = {"DYN_WORKER_API_KEY": "wrong", "DYN_PROBE_INTERVAL_SECS": "0.05"}
        command = ("gateway", "serve", "--port", "0", "--worker", sim.url)
        async with spawned(*command, variables=variables) as gateway:
            assert gateway.stderr is not None
            lines = [await gateway.stderr.readline()]
            while b"is not usable" not in lines[-1]:
                lines.append(await asyncio.wait_for(gateway.stderr.readline(), PATIENCE))
            asked = len(sim.all_requests)
            await asyncio.wait_for(sim.until(lambda: len(sim.all_requests) > asked + 10), PATIENCE)
            gateway.send_signal(signal.SIGTERM)
            lines += (await asyncio.wait_for(gateway.communicate(), PATIENCE))[1].splitlines()
    assert gateway.returncode == 0
    shown = [line.decode() for line in lines if reason.encode() in line]
    assert len(shown) == 2 and all(sim.url in line for line in shown)
    assert "is not usable: it answers 401" in shown[0] and "was not usable until the end: it" in shown[1]


def test_port_in_use_is_one_clear_line_and_exit_code_1() -> None:
    with listen("127.0.0.1", 0, 10) as taken:
        port = str(taken.getsockname()[1])
        ended = start("serve", "--host", "127.0.0.1", "--port", port)
    assert ended.returncode == 1
    assert len(ended.stderr.splitlines()) == 1 and port in ended.stderr


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the allocator of glibc only")
def test_memory_of_large_events_is_reused() -> None:
    """50 times 2 MiB in blocks of 128 KiB have 25,600 pages; few of them may cause page faults."""
    code = """
import resource
from gateway.process.server import _keep_freed_memory

def once():
    blocks = [b"x" * 131072 for _ in range(16)]
    return b"".join(blocks)

_keep_freed_memory()
once()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    once()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert int(printed) < 1000


@pytest.mark.parametrize("name", ["no-such-host.invalid", "no..name", "l" * 64])
def test_error_of_an_invalid_host_names_it(name: str) -> None:
    with pytest.raises(PortTaken, match=re.escape(f"cannot listen on {name} port 0: ")):
        listen(name, 0, 10)


def test_processes_share_a_file_in_memory_or_else_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container may have no other writable folder. Without both, the error has one line."""
    nowhere, temporary = tmp_path / "nowhere", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(nowhere))
    monkeypatch.setattr(shared_folder, "MEMORY", str(tmp_path))
    with server.with_shared_store(Settings(processes=2)) as settings:
        file = Path(settings.discovery_file or "")
        assert (settings.discovery_backend, file.parent.parent) == ("file", tmp_path)
    assert not file.parent.exists()
    monkeypatch.setattr(shared_folder, "MEMORY", str(nowhere))
    with pytest.raises(
        ProcessesImpossible, match=r"DYN_HTTP_PROCESSES: .* \(TMPDIR\) can be written to: No such"
    ):
        with server.with_shared_store(Settings(processes=2)):
            pass
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    with server.with_shared_store(Settings(processes=2)) as settings:
        assert Path(settings.discovery_file or "").parent.parent == temporary


def test_folders_that_killed_gateways_left_are_removed_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those whose gateway lives, nor what has no lock, is a link or cannot be opened."""
    monkeypatch.setattr(shared_folder, "MEMORY", str(tmp_path))
    left, elsewhere, foreign, new = (tmp_path / f"tito-gateway-{name}" for name in ("l", "e", "f", "n"))
    outside = tmp_path / "outside"
    for folder in (left, foreign, new, outside):
        folder.mkdir()
    for folder in (left, outside):
        (folder / shared_folder.LOCK).touch()
        (folder / "workers.json").touch()
    elsewhere.symlink_to(outside)
    (foreign / shared_folder.LOCK).symlink_to(outside / shared_folder.LOCK)
    with shared_folder.shared_folder() as living:
        with shared_folder.shared_folder():
            assert not left.exists()
            assert living.exists() and foreign.exists() and new.exists()
            assert sorted(each.name for each in outside.iterdir()) == [shared_folder.LOCK, "workers.json"]
    assert not living.exists()


def test_folder_belongs_to_its_gateway_as_long_as_one_of_its_processes_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor is killed here, and a process that it forked lives on for a while."""
    monkeypatch.setattr(shared_folder, "MEMORY", str(tmp_path))
    script = (
        "import os, signal, sys; from gateway.process import shared_folder\n"
        "shared_folder.MEMORY = sys.argv[1]\n"
        "with shared_folder.shared_folder():\n"
        "    if os.fork():\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    print(os.getpid(), flush=True)\n"
        "    sys.stdin.read()\n"
        "    os._exit(0)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as gateway:
        assert gateway.stdout is not None and gateway.stdout.readline()
        assert gateway.wait(PATIENCE) == -signal.SIGKILL
        (folder,) = tmp_path.iterdir()
        shared_folder.remove_abandoned(tmp_path)
        assert folder.exists()
        assert gateway.stdin is not None
        gateway.stdin.close()
        until = time.monotonic() + PATIENCE
        while folder.exists():  # the last process is ending
            assert time.monotonic() < until
            shared_folder.remove_abandoned(tmp_path)
            time.sleep(0.01)


def test_several_processes_require_shared_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "SO_REUSEPORT")
    with pytest.raises(ProcessesImpossible, match="DYN_HTTP_PROCESSES: only one process"):
        run(Settings(processes=2, port=0))


async def test_every_accepted_client_is_served_while_all_workers_are_probed_and_called() -> None:
    """A process with few open files reserves enough for its own connections, though there are more silent
    workers to probe than files."""
    slow = SimConfig(token_delay=0.1)
    async with SimServer("sglang", slow) as sim, SimServer("sglang", slow) as other:
        with listen("0.0.0.0", 0, 512) as silent:
            port = silent.getsockname()[1]
            urls = [f"http://127.1.0.{number}:{port}" for number in range(1, 200)]
            async with served(sim.url, other.url, *urls, OPEN_FILES="192") as gateway:
                clients = [await RawClient.connect(gateway.port) for _ in range(max_connections_for(192))]
                for client in clients:
                    client.request("/generate", json.dumps(body_of("sglang", 20, True)).encode())
                assert {(await client.head())[9:12] for client in clients} == {b"200"}
                clients[0].leave()
                async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE) as caller:
                    called = (await caller.post(f"{gateway.url}/flush_cache", json={})).json()
                    assert [each["status"] for each in called["results"]] == [400, 400], "they are busy"
                    await caller.post(f"{gateway.url}/abort_request", json={"abort_all": True})
                for client in clients[1:]:
                    await client.reader.readuntil(b"[DONE]")
                    client.leave()
                gateway.process.terminate()
                _, errors = await gateway.process.communicate()
    assert b"no socket" not in errors and b"Too many open files" not in errors
    assert len(clients) > 20


@pytest.mark.parametrize("processes", ["1", "2"])
def test_too_low_limit_of_open_files_is_an_error_of_one_line(processes: str) -> None:
    serve = f"{sys.executable} -m gateway serve --port 0 --processes {processes}"
    for limit in ("12", "64"):
        ended = subprocess.run(
            ["bash", "-c", f"ulimit -n {limit}; exec {serve}"],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert ended.returncode == 1
        (line,) = ended.stderr.splitlines()
        assert f"may have {limit} open files" in line and "ulimit" in line
