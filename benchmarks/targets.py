"""The measured targets: a worker asked directly, the gateway, HAProxy as the floor, and the other routers.

Owns: the definition of a target, starting one, the gateway's own command. Must never enter: loads, figures.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import procfs
from benchmarks.dialects import SGLANG, VLLM
from benchmarks.processes import NotStarted, Processes, ask

DIRECT, GATEWAY, FLOOR = "direct", "gateway", "haproxy"
#: The compiled build of the same checkout, which `make compile` leaves below it.
COMPILED, COMPILED_FOLDER = "gateway-compiled", Path("build", "compiled")
#: Both builds of another checkout, for a comparison before and after a change in one run.
BASELINE, BASELINE_COMPILED = "baseline", "baseline-compiled"
#: Every build of this gateway; a router is any other target but DIRECT and FLOOR.
BUILDS = (GATEWAY, COMPILED, BASELINE, BASELINE_COMPILED)
BOTH_PATHS = (SGLANG.path, VLLM.path)
#: Seconds that a target has for its first reply.
PATIENCE = 40.0
_FIRST_REQUEST = SGLANG.request(8, 1)


@dataclass(frozen=True)
class Command:
    """The command that starts a target, and the ``paths`` it serves; without ``environment`` it runs in our
    own.
    """

    name: str
    words: Sequence[str]
    port: int
    paths: tuple[str, ...] = BOTH_PATHS
    environment: Mapping[str, str] | None = None
    folder: Path | None = None


@dataclass
class Target:
    """A server that is measured. A worker has no ``process``: its cost is not measured."""

    name: str
    port: int
    paths: tuple[str, ...] = BOTH_PATHS
    version: str = ""
    command: str = ""
    #: Seconds from its start to the first 200 on a generate path.
    first_reply: float = 0.0
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def pid(self) -> int:
        """Return the process id of a target that is not a worker."""
        assert self.process is not None
        return self.process.pid

    def cpu_seconds(self) -> float:
        """Return the processor time used so far, in seconds; 0 for a worker."""
        return procfs.cpu_seconds(self.pid) if self.process is not None else 0.0


def start(processes: Processes, command: Command, version: str = "") -> Target:
    """Start the target and return it once it has answered a generate request. Raises NotStarted."""
    began = time.monotonic()
    process = processes.start(
        command.name, command.words, environment=command.environment, folder=command.folder
    )
    while ask(command.port, "POST", SGLANG.path, _FIRST_REQUEST)[0] != 200:
        if process.poll() is not None or time.monotonic() - began > PATIENCE:
            raise NotStarted(f"{command.name} did not come up; its log ends: {processes.tail(command.name)}")
        time.sleep(0.01)
    seconds = time.monotonic() - began
    words = " ".join(command.words)
    return Target(command.name, command.port, command.paths, version, words, seconds, process)


def start_gateway(
    processes: Processes,
    workers: Sequence[int],
    checkout: Path,
    *,
    name: str = GATEWAY,
    flags: Sequence[str] = (),
) -> Target:
    """Start the gateway of ``checkout`` with its defaults: metrics and access log on, the log in a file.

    Raises NotStarted.
    """
    port = processes.port()
    words = [sys.executable, "-m", "gateway", "serve", "--host", "127.0.0.1", "--port", str(port)]
    words += [word for worker in workers for word in ("--worker", f"http://127.0.0.1:{worker}")]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("DYN_")}
    environment["PYTHONPATH"] = str(checkout)  # before installed packages
    command = Command(name, [*words, *flags], port, environment=environment, folder=checkout)
    return start(processes, command, procfs.commit(checkout))
