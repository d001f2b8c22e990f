"""TLS to workers: requests, probes and aborts, and the reasons of failures."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.security import file_changes
from gateway.sim import Pace, SimConfig, SimServer
from tests.security.certificates import Authority
from tests.support.gateway import Rig, eventually, generates, rig, until
from tests.support.generate import KINDS, body_of
from tests.support.processes import run


def _shown(authority: Authority, issuer: Authority) -> dict[str, str]:
    """Settings that trust ``authority``, and show workers a certificate from ``issuer``."""
    certificate, key = issuer.files("gateway.test", stem="gateway")
    ours = {"worker_client_cert": certificate, "worker_client_key": key}
    return {"worker_ca_file": str(authority.file), **ours}


def _reason(gateway: Rig) -> str:
    [worker] = gateway.app.fleet.workers
    return worker.reason


@pytest.mark.parametrize("asks", [False, True], ids=["", "asks-for-one"])
@pytest.mark.parametrize("kind", KINDS)
async def test_worker_with_a_trusted_certificate_serves(kind: str, asks: bool, authority: Authority) -> None:
    """A worker that requires a certificate gets one."""
    settings = _shown(authority, authority) if asks else {"worker_ca_file": str(authority.file)}
    async with (
        SimServer(kind, SimConfig(), tls=authority.server(asks=asks)) as sim,
        rig(sim.url, **settings) as gateway,
    ):
        assert sim.url.startswith("https://")
        for stream in (False, True):
            reply = await gateway.client.post(KINDS[kind], json=body_of(kind, 4, stream))
            assert reply.status_code == 200
        assert len({arrival.connection for arrival in generates(sim)}) == 1
        assert (await gateway.client.get("/ready")).status_code == 200


@pytest.mark.parametrize("cut", ["fin", "rst", "chunk"])
async def test_reply_that_breaks_off_is_a_failure_however_it_ends(cut: str, authority: Authority) -> None:
    """With or without a close_notify."""
    async with (
        SimServer("sglang", SimConfig(), tls=authority.server()) as sim,
        rig(sim.url, worker_ca_file=str(authority.file)) as gateway,
    ):
        sim.behave(Pace(cut_after=2, cut=cut))
        reply = await gateway.client.post("/generate", json=body_of("sglang", 9, True))
        assert b'"error"' in reply.content and reply.content.endswith(b"data: [DONE]\n\n")
        assert len(generates(sim)) == 1


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda ours, _: ours.server("else.test"), "not accepted: .*not valid for '127.0.0.1'"),
        (lambda ours, _: ours.server(expired=True), "not accepted: certificate has expired"),
        (
            lambda _, folder: Authority(folder, "stranger").server(),
            "not accepted: .*(self.signed|local issuer)",
        ),
        (lambda ours, _: ours.server(asks=True), "wants? a client certificate"),
    ],
    ids=["wrong-name", "expired", "unknown-authority", "no-client-certificate"],
)
async def test_worker_that_is_not_trusted_gets_nothing_and_workers_says_why(
    make: Callable[[Authority, Path], ssl.SSLContext], problem: str, authority: Authority, tmp_path: Path
) -> None:
    async with (
        SimServer("sglang", SimConfig(), tls=make(authority, tmp_path)) as sim,
        rig(worker_ca_file=str(authority.file)) as gateway,
    ):
        await gateway.client.post("/workers", json={"url": sim.url})
        await until(lambda: re.search(problem, _reason(gateway)) is not None)
        [row] = (await gateway.client.get("/workers")).json()["workers"]
        assert re.search(problem, row["reason"]) and row["is_healthy"] is False
        assert (await gateway.client.post("/generate", json=body_of("sglang"))).status_code == 503
        assert not sim.all_requests


async def test_insecure_accepts_any_certificate_but_no_plain_worker(tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger")
    async with SimServer("sglang", SimConfig(), tls=stranger.server("else.test", expired=True)) as sim:
        async with rig(sim.url, worker_tls_insecure=True) as gateway:
            assert (await gateway.client.post("/generate", json=body_of("sglang"))).status_code == 200
    async with SimServer("sglang", SimConfig()) as sim:
        async with rig(sim.url.replace("http:", "https:"), worker_tls_insecure=True) as gateway:
            await until(lambda: "it does not speak TLS" in _reason(gateway))


async def test_new_client_certificate_is_used_without_a_restart(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that refused the old one becomes usable."""
    monkeypatch.setattr(file_changes, "INTERVAL", 0.02)
    async with (
        SimServer("sglang", SimConfig(), tls=authority.server(asks=True)) as sim,
        rig(**_shown(authority, Authority(tmp_path, "stranger"))) as gateway,
    ):
        await gateway.client.post("/workers", json={"url": sim.url})
        await until(lambda: "client certificate" in _reason(gateway))
        authority.files("gateway.test", stem="gateway")

        async def serves() -> bool:
            reply = await gateway.client.post("/generate", json=body_of("sglang"))
            return reply.status_code == 200

        await eventually(serves)


async def test_check_command_probes_workers_over_tls(authority: Authority) -> None:
    async with SimServer("sglang", SimConfig(), tls=authority.server()) as sim:
        for flags, shown in (
            (("--worker-ca-file", str(authority.file)), " yes"),
            ((), "its certificate is not accepted"),
        ):
            assert shown in (await asyncio.to_thread(run, "check", "--worker", sim.url, *flags)).stdout
