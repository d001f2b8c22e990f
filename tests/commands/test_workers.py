"""``tito-gateway workers`` as users run it, against a real gateway."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cards.values import CardValues
from gateway.commands import workers_api
from gateway.commands.main import app
from gateway.commands.workers import HEADINGS, KEY_VARIABLE, _keep_record
from gateway.sim import SimConfig, SimServer
from gateway.stores.base import Reset
from gateway.stores.memory import MemoryStore
from gateway.stores.record import WorkerRecord
from tests.support.gateway import Rig, rig, until
from tests.support.processes import free_port, spawned
from tests.support.scripted import scripted


async def command(*arguments: str) -> Result:
    """The command in a thread: the gateway it calls runs on this loop."""
    return await asyncio.to_thread(CliRunner().invoke, app, ["workers", *arguments])


@asynccontextmanager
async def gateway() -> AsyncIterator[tuple[Rig, SimServer]]:
    async with SimServer("sglang", SimConfig()) as sim, rig() as rigged:
        yield rigged, sim


async def test_worker_is_added_listed_cordoned_uncordoned_and_removed() -> None:
    async with gateway() as (rigged, sim):
        fleet, url = rigged.app.fleet, ("--url", rigged.url)
        added = await command("add", sim.url, "--label", "zone=a", "--vocab-size", "9", "--held", *url)
        assert (added.exit_code, added.output.startswith(f"worker registered: {sim.url} ")) == (0, True)
        record = WorkerRecord(sim.url, card=CardValues(vocab_size=9), labels={"zone": "a"}, cordoned=True)
        assert fleet.workers[0].record == record
        await until(lambda: fleet.workers[0].state == "held")
        for name in ("uncordon", "cordon", "open", "hold", "open"):
            assert (await command(name, sim.url, *url)).exit_code == 0
            assert fleet.workers[0].state == ("ready" if name in ("uncordon", "open") else "held")
        lines = (await command("list", *url)).output.splitlines()
        assert lines[0].split() == list(HEADINGS)
        assert lines[1].split()[:2] == [sim.url, "ready"]
        listed = json.loads((await command("list", "--json", *url)).output)
        assert [one["url"] for one in listed["workers"]] == [sim.url]
        assert (await command("remove", fleet.workers[0].id, *url)).exit_code == 0
        assert fleet.workers == ()
        await command("add", sim.url, *url)
        assert (await command("drain", sim.url, *url)).exit_code == 0
        assert fleet.workers == ()


async def test_failure_is_one_line_and_exit_code_1() -> None:
    """The line is the error message of the gateway, if there is one."""
    async with gateway() as (rigged, _):
        refused = await command("remove", "nobody", "--url", rigged.url)
        message = "tito-gateway workers: there is no worker 'nobody'\n"
        assert (refused.exit_code, refused.output) == (1, message)
        elsewhere = await command("list", "--url", f"{rigged.url}/elsewhere")
        assert (elsewhere.exit_code, "Route not found" in elsewhere.output) == (1, True)
    nobody = await command("list", "--url", f"http://127.0.0.1:{free_port()}")
    assert (nobody.exit_code, "cannot reach" in nobody.output, nobody.output.count("\n")) == (1, True, 1)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n"])
async def test_call_without_a_complete_reply_ends_at_its_limit(
    monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    """With a silent and with a slow gateway."""
    monkeypatch.setattr(workers_api, "CALL_TIMEOUT", 0.3)
    async with scripted(answer, drip=b" " if answer else b"") as server:
        result = await command("list", "--url", server.url)
        await until(lambda: server.open == 0)
    message = f"tito-gateway workers: no reply from {server.url} within 0.3 s\n"
    assert (result.exit_code, result.output) == (1, message)


@pytest.mark.parametrize(
    "answer", [b"{}", b"[]", b'"x"', b"\xff", b'{"workers":null}', b'{"workers":[1]}', b'{"workers":[{}]}']
)
async def test_reply_of_another_server_is_one_line_of_error(answer: bytes) -> None:
    async with scripted(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(answer), answer)) as server:
        result = await command("list", "--url", server.url)
    assert (result.exit_code, result.output.count("\n")) == (1, 1)
    assert "no list of workers" in result.output or "200 without a JSON object" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add", "a:1"), "not of the form http://host:port"),
        (("add", "http://a:1", "--label", "zone"), "NAME=VALUE"),
        (("add", "http://a:1", "--worker-type", "both"), "worker_type must be one of"),
        (("add", "http://a:1", "--worker-type", "decode", "--keep"), "decode cannot be served yet"),
        (("add", "http://a:1", "--card", "[]"), "--card must be a JSON object"),
        (("add", "http://a:1", "--card", '{"contex_length":1}'), "contex_length is no member of a card"),
        (("add", "http://a:1", "--card", '{"max_num_seqs":"1"}'), "max_num_seqs must be an integer"),
        (("add", "http://a:1", "--keep"), "--keep needs DYN_DISCOVERY_BACKEND file or etcd, not memory"),
    ],
)
async def test_wrong_usage_is_one_line_and_exit_code_2(arguments: tuple[str, ...], message: str) -> None:
    result = await command(*arguments)
    assert (result.exit_code, message in result.output, result.output.count("\n")) == (2, True, 1)


async def test_card_that_is_given_is_shown_with_the_source_of_each_value() -> None:
    async with gateway() as (rigged, sim):
        given = '{"context_length":64,"token_budget":{"combined_limit":64}}'
        flags = ("--card", given, "--dyn-structural-tag=off", "--url", rigged.url)
        added = await command("add", sim.url, *flags)
        assert added.exit_code == 0
        await until(lambda: any(worker.infos for worker in rigged.app.fleet.workers))
        shown = await command("show", sim.url, "--url", rigged.url)
        rows = {line.split()[0]: line.split()[1:] for line in shown.output.splitlines()}
        assert rows["context_length"] == ["64", "registration"]
        assert rows["structural_tag"] == ["null", "registration"]
        assert rows["token_budget"][-1] == "registration"
        assert rows["sglang_generate"] == ["true", "engine"]
        assert rows["data_parallel_start_rank"] == ["0", "default"]
        as_json = await command("show", sim.url, "--json", "--model", "sim", "--url", rigged.url)
        assert json.loads(as_json.output)["card"]["context_length"] == 64
    async with scripted(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}") as server:
        result = await command("show", "x", "--url", server.url)
    assert (result.exit_code, "the reply has no card" in result.output) == (1, True)


async def test_key_is_sent_and_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key of the flag, or else that of the environment."""
    async with scripted(b"HTTP/1.1 403 X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n") as server:
        monkeypatch.setenv(KEY_VARIABLE, "from-outside")
        for given in ((), ("--admin-api-key", "hunter2")):
            result = await command("list", "--url", server.url, *given)
            assert result.output == "tito-gateway workers: the gateway replied 403\n"
    assert b"\r\nauthorization: Bearer from-outside\r\n" in server.heads[0]
    assert b"\r\nauthorization: Bearer hunter2\r\n" in server.heads[1]


async def test_watch_runs_until_interrupted() -> None:
    """One line of JSON each time; an interrupt is no failure."""
    async with gateway() as (rigged, sim):
        asked = ("workers", "list", "--json", "--watch", "--url", rigged.url)
        async with spawned("gateway", *asked) as process:
            assert process.stdout is not None
            assert json.loads(await process.stdout.readline())["total"] == 0
            await command("add", sim.url, "--url", rigged.url)
            while not json.loads(await process.stdout.readline())["total"]:
                pass
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 0


async def test_kept_record_is_in_the_store_while_the_command_runs() -> None:
    """It is deleted as soon as the command is ended."""
    store, record = MemoryStore(), WorkerRecord("http://a:1")
    keeping = asyncio.ensure_future(_keep_record(store, record))
    await until(lambda: store._records == {record.url: record})
    signal.raise_signal(signal.SIGTERM)
    await asyncio.wait_for(keeping, 5)
    assert await anext(MemoryStore().watch()) == Reset({})
    assert store._records == {}


async def test_kept_worker_serves_through_a_gateway_that_shares_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command runs beside an engine; the gateway reads the same file."""
    path = str(tmp_path / "workers.json")
    async with SimServer("sglang", SimConfig()) as sim:
        async with rig(discovery_backend="file", discovery_file=path) as rigged:
            fleet = rigged.app.fleet
            monkeypatch.setenv("DYN_DISCOVERY_BACKEND", "file")
            monkeypatch.setenv("DYN_DISCOVERY_FILE", path)
            async with spawned("gateway", "workers", "add", sim.url, "--keep") as keeper:
                await until(lambda: any(worker.state == "ready" for worker in fleet.workers), 30)
                keeper.send_signal(signal.SIGTERM)
                assert await keeper.wait() == 0
            await until(lambda: fleet.workers == ())
