"""The routers beside which the gateway is measured, and HAProxy, which forwards bytes without understanding
them.

Owns: where each is found, its version and its command. Must never enter: loads, figures.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.dialects import SGLANG
from benchmarks.processes import NotStarted, Processes
from benchmarks.targets import BOTH_PATHS, FLOOR, Command, Target, start


@dataclass(frozen=True)
class Peer:
    """A router from PyPI: its command, and ``folder``, its virtual environment below ``--peers``.

    The URLs of the workers follow ``arguments``, in which ``{port}`` and ``{metrics}`` are filled in.
    """

    name: str
    folder: str
    arguments: str
    paths: tuple[str, ...]


_LISTEN = "--host 127.0.0.1 --port {port} --prometheus-host 127.0.0.1 --prometheus-port {metrics}"
_ROUTE = "--policy round_robin --worker-startup-check-interval 1"
PEERS = (
    Peer("sglang-router", "sgl", f"launch {_LISTEN} {_ROUTE} --log-level warn --worker-urls", (SGLANG.path,)),
    Peer("smg", "smg", f"launch {_LISTEN} {_ROUTE} --log-level warn --worker-urls", (SGLANG.path,)),
    Peer("vllm-router", "vllmr", f"{_LISTEN} {_ROUTE} --log-level warning --worker-urls", BOTH_PATHS),
)

#: HAProxy is installed in sbin, which is not on every user's PATH.
_SBIN = "/usr/sbin:/usr/local/sbin"
_HAPROXY = """
global
  nbthread 1
  maxconn 8000
defaults
  mode http
  timeout connect 5s
  timeout client 1h
  timeout server 1h
  http-reuse always
  balance roundrobin
frontend in
  bind 127.0.0.1:{port}
  default_backend workers
backend workers
{servers}
"""


def start_peers(
    processes: Processes, workers: Sequence[int], folder: Path | None
) -> tuple[list[Target], list[str]]:
    """Start HAProxy and every installed router; return them with a notice for each one that is missing."""
    targets, missing = [], []
    starts: list[Callable[[Processes, Sequence[int]], Target]] = [_start_haproxy]
    starts += [partial(_start_peer, peer, folder) for peer in PEERS]
    for each in starts:
        try:
            targets.append(each(processes, workers))
        except (FileNotFoundError, NotStarted) as error:
            missing.append(str(error))
    return targets, missing


def _start_peer(peer: Peer, folder: Path | None, processes: Processes, workers: Sequence[int]) -> Target:
    executable = find(peer, folder)
    port = processes.port()
    arguments = peer.arguments.format(port=port, metrics=processes.port()).split()
    words = [executable, *arguments, *(f"http://127.0.0.1:{worker}" for worker in workers)]
    return start(processes, Command(peer.name, words, port, peer.paths), _version(executable, peer.name))


def find(peer: Peer, folder: Path | None) -> str:
    """Return the command of a router, in its environment below ``folder`` or on PATH. Raises
    FileNotFoundError.
    """
    own = folder / peer.folder / "bin" / peer.name if folder is not None else None
    if own is not None and own.exists():
        return str(own)
    if found := shutil.which(peer.name):
        return found
    where = f" nor in {own}" if own is not None else "; --peers DIR names a folder of environments"
    raise FileNotFoundError(f"{peer.name} is not on PATH{where} (pip install {peer.name})")


def _version(executable: str, package: str) -> str:
    """Return the version of a package in the environment of its command, or "" if it is unknown."""
    python = Path(executable).parent / "python"
    code = f"from importlib.metadata import version; print(version({package!r}))"
    words = [str(python) if python.exists() else sys.executable, "-c", code]
    return subprocess.run(words, capture_output=True, text=True).stdout.strip()


def _start_haproxy(processes: Processes, workers: Sequence[int]) -> Target:
    executable = shutil.which("haproxy") or shutil.which("haproxy", path=_SBIN)
    if executable is None:
        raise FileNotFoundError("haproxy is not on PATH (apt-get install haproxy)")
    port = processes.port()
    servers = "\n".join(f"  server w{number} 127.0.0.1:{worker}" for number, worker in enumerate(workers))
    configuration = processes.folder / "haproxy.cfg"
    configuration.write_text(_HAPROXY.format(port=port, servers=servers))
    text = subprocess.run([executable, "-v"], capture_output=True, text=True).stdout
    version = (re.findall(r"version ([\d.]+)", text) or [""])[0]
    return start(processes, Command(FLOOR, [executable, "-db", "-f", str(configuration)], port), version)
