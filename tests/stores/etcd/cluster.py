"""Real etcd servers on free ports of the loopback, each with its own folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import free_port

ETCD = shutil.which("etcd") or "/usr/bin/etcd"
START_WITHIN = 60.0


@dataclass
class Member:
    """One server. ``tls`` are flags for clients over TLS, which then have to use https."""

    folder: Path
    name: str = "one"
    tls: Sequence[str] = ()
    client_port: int = field(default_factory=free_port)
    peer_port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.client_port}"

    @property
    def peer(self) -> str:
        return f"{self.name}=http://127.0.0.1:{self.peer_port}"

    def start(self, cluster: str | None = None) -> None:
        peer = f"http://127.0.0.1:{self.peer_port}"
        flags = {
            "name": self.name,
            "data-dir": str(self.folder / self.name),
            "listen-client-urls": self.url,
            "advertise-client-urls": self.url,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": cluster or self.peer,
            # Ten times faster than by default, and so are its shortest leases.
            "heartbeat-interval": "20",
            "election-timeout": "200",
            "logger": "zap",
            "log-outputs": str(self.folder / f"{self.name}.log"),
        }
        command = [ETCD, *(f"--{flag}={value}" for flag, value in flags.items()), *self.tls]
        env = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}  # noqa: TID251
        self.process = subprocess.Popen(
            command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def pause(self) -> None:
        """Stop the process: its connections stay open, and it answers nothing."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def forget(self) -> None:
        """Delete all data of a server that does not run."""
        assert self.process is None
        shutil.rmtree(self.folder / self.name)

    def wait(self) -> None:
        """Wait until it answers, and has a leader."""
        assert self.process is not None
        deadline = time.monotonic() + START_WITHIN
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                call(self.url, "/v3/kv/range", {"key": "eA=="})
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise AssertionError((self.folder / f"{self.name}.log").read_text()[-4000:])


def call(url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Call etcd without the gateway's client. Raises OSError."""
    request = urllib.request.Request(url + path, json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=5) as reply:
        answer: dict[str, Any] = json.load(reply)
        return answer


def compact(url: str) -> None:
    """Compact all history up to now."""
    revision = call(url, "/v3/kv/range", {"key": "eA=="})["header"]["revision"]
    call(url, "/v3/kv/compaction", {"revision": revision})


def require() -> None:
    """Skip the test where etcd is not installed; fail in CI."""
    if Path(ETCD).exists():
        return
    if os.environ.get("CI"):  # noqa: TID251
        pytest.fail("etcd is missing, and CI must test it: apt-get install etcd-server")
    pytest.skip("NOT TESTED, ETCD IS NOT INSTALLED HERE: apt-get install etcd-server")


@contextmanager
def cluster(folder: Path, *names: str) -> Iterator[list[Member]]:
    """Servers of one cluster that are ready; the block may stop and start them."""
    require()
    members = [Member(folder, name) for name in names]
    peers = ",".join(member.peer for member in members)
    with ExitStack() as stack:
        for member in members:
            stack.callback(member.kill)
            member.start(peers)
        for member in members:
            member.wait()
        yield members


@contextmanager
def running(folder: Path) -> Iterator[Member]:
    """A single server."""
    with cluster(folder, "one") as (member,):
        yield member
