"""Real etcd servers on free ports of the loopback, each with its own folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
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
#: A range of one key, which need not exist.
RANGE = {"key": "eA=="}


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
            "data-dir": self.folder / self.name,
            "listen-client-urls": self.url,
            "advertise-client-urls": self.url,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": cluster or self.peer,
            # Ten times faster than by default, and so are its shortest leases.
            "heartbeat-interval": 20,
            "election-timeout": 200,
            "logger": "zap",
            "log-outputs": self.folder / f"{self.name}.log",
        }
        command = [ETCD, *(f"--{flag}={value}" for flag, value in flags.items()), *self.tls]
        env = {name: value for name, value in os.environ.items() if not name.startswith("ETCD_")}  # noqa: TID251
        self.process = subprocess.Popen(
            command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def restart(self, cluster: str | None = None) -> None:
        """Start it and wait until it answers."""
        self.start(cluster)
        self.wait()

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def send(self, signal_: signal.Signals) -> None:
        """SIGSTOP: its connections stay open, and it answers nothing until SIGCONT."""
        assert self.process is not None
        self.process.send_signal(signal_)

    def call(self, path: str, **body: Any) -> Any:
        """Call it without the gateway's client. Raises OSError."""
        request = urllib.request.Request(f"{self.url}/v3/{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=5) as reply:
            return json.load(reply)

    def wait(self) -> None:
        """Wait until it answers, and has a leader."""
        assert self.process is not None
        deadline = time.monotonic() + START_WITHIN
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                self.call("kv/range", **RANGE)
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise AssertionError((self.folder / f"{self.name}.log").read_text()[-4000:])


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
    with ExitStack() as stack:
        for member in members:
            stack.callback(member.kill)
            member.start(",".join(each.peer for each in members))
        for member in members:
            member.wait()
        yield members


@contextmanager
def running(folder: Path) -> Iterator[Member]:
    """A single server."""
    with cluster(folder, "one") as (member,):
        yield member
