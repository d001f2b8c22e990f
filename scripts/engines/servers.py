"""Engine servers on free loopback ports: start, wait until they serve, stop them with all their processes.

Owns: the command line of each kind of server, its process group, its log and its record on disk (with which
another process can stop a server whose own one was killed). Must never enter: installation, expectations.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from scripts.engines import install, paths

MODEL_NAME = "tiny"
#: In tokens. Long enough for a request that still runs seconds after its client disconnected.
CONTEXT = "8192"
#: Engines use all the processor time they get; the tests that measure their reaction have priority.
NICE = "10"
READY_WITHIN = 300.0
STOPS_WITHIN = 15.0

_LIMITS = ("--served-model-name", MODEL_NAME, "--host", "127.0.0.1")
_SGLANG = (
    *("-m", "sglang.launch_server", *_LIMITS, "--device", "cpu"),
    *("--attention-backend", "torch_native", "--sampling-backend", "pytorch"),
    *("--disable-overlap-schedule", "--disable-cuda-graph"),
    *("--max-total-tokens", "131072", "--context-length", CONTEXT, "--max-running-requests", "16"),
    *("--random-seed", "0", "--model-path"),
)
_VLLM = (
    *("-m", "vllm.entrypoints.cli.main", "serve", *_LIMITS, "--enforce-eager", "--seed", "0"),
    *("--max-model-len", CONTEXT, "--max-num-seqs", "16", "--model"),
)
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "DO_NOT_TRACK": "1", "OMP_NUM_THREADS": "1"}
_SGLANG_ENV = {**_OFFLINE, "SGLANG_USE_CPU_ENGINE": "1", "PYTHONPATH": str(paths.HERE / "standins")}
_VLLM_ENV = {
    **_OFFLINE,
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


@dataclass(frozen=True)
class Kind:
    """A way to run an engine. ``ready`` is a path that answers 200 once it serves."""

    engine: str
    words: tuple[str, ...]
    env: Mapping[str, str] = field(repr=False)
    options: tuple[str, ...] = ()
    ready: str = "/health"

    def command(self, model: Path, port: int) -> list[str]:
        python = str(paths.interpreter(self.engine))
        return ["nice", "-n", NICE, python, *self.words, str(model), "--port", str(port), *self.options]


KINDS: Mapping[str, Kind] = {
    "sglang": Kind("sglang", _SGLANG, _SGLANG_ENV),
    "sglang-incremental": Kind("sglang", _SGLANG, _SGLANG_ENV, ("--incremental-streaming-output",)),
    # Of its own, for a test that ends it.
    "sglang-ending": Kind("sglang", _SGLANG, _SGLANG_ENV),
    "sglang-tokens": Kind("sglang", _SGLANG, _SGLANG_ENV, ("--skip-tokenizer-init",)),
    # The mode used in training, with routes that pause the engine, put it to sleep and change its weights.
    "vllm": Kind("vllm", _VLLM, {**_VLLM_ENV, "VLLM_SERVER_DEV_MODE": "1"}, ("--enable-scale-out",)),
    "vllm-tokens": Kind("vllm", _VLLM, _VLLM_ENV, ("--tokens-only", "--skip-tokenizer-init")),
    "vllm-closed": Kind("vllm", _VLLM, _VLLM_ENV),
}


class StartFailed(Exception):
    """An installed engine did not start. The message ends with the tail of its log."""


@dataclass(frozen=True)
class Server:
    """A running engine server. ``born`` distinguishes its process from a later one with the same id."""

    name: str
    pid: int
    url: str
    log: str
    born: str

    @property
    def alive(self) -> bool:
        return _born(self.pid) == self.born

    def stop(self) -> None:
        """Stop the server and its children; return when none is left."""
        if self.alive:
            os.kill(self.pid, signal.SIGTERM)
            _wait_until(lambda: not self.alive, STOPS_WITHIN)
            _kill_group(self.pid)
        _record(self.name).unlink(missing_ok=True)


def start(name: str, port: int | None = None) -> Server:
    """Start the kind ``name`` in the background; ``wait_ready`` waits until it serves."""
    kind, port = KINDS[name], port or free_port()
    log = paths.runs() / f"{name}.log"
    binaries = str(paths.interpreter(kind.engine).parent)
    env = {**os.environ, **kind.env, "PATH": os.pathsep.join((binaries, os.environ.get("PATH", "")))}
    with log.open("wb") as output:
        process = subprocess.Popen(
            kind.command(install.write_model(), port),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=env,
            # A process group of its own lets all of it be killed at once. A session of its own would get an
            # equal share of the processor from the kernel, and a busy engine could then starve the test that
            # watches it.
            process_group=0,
        )
    # The server is identified, stopped and reaped by its id, also from another process. Setting the return
    # code keeps this object from warning that the process still runs.
    process.returncode = 0
    server = Server(name, process.pid, f"http://127.0.0.1:{port}", str(log), _born(process.pid) or "")
    _record(name).write_text(json.dumps(asdict(server)))
    return server


def wait_ready(server: Server, seconds: float = READY_WITHIN) -> None:
    """Return once ``server`` serves. Stop it and raise StartFailed if it ends or is too slow."""
    ready = server.url + KINDS[server.name].ready
    if _wait_until(lambda: not server.alive or _answers(ready), seconds) and server.alive:
        return
    ended = "is not ready in time" if server.alive else "has ended"
    server.stop()
    tail = Path(server.log).read_text(errors="replace").splitlines()[-40:]
    raise StartFailed("\n".join([f"{server.name} {ended}; the end of {server.log}:", *tail]))


def running() -> list[Server]:
    """Return the running servers that this checkout started."""
    servers = [Server(**json.loads(path.read_text())) for path in sorted(paths.runs().glob("*.json"))]
    return [server for server in servers if server.alive]


def _record(name: str) -> Path:
    return paths.runs() / f"{name}.json"


def _answers(url: str) -> bool:
    # A proxy in the environment must not be used for loopback.
    try:
        with build_opener(ProxyHandler({})).open(url, timeout=10) as reply:
            return int(reply.status) == 200
    except (URLError, OSError):
        return False


def _born(pid: int) -> str | None:
    """Return the process's start time in the kernel's unit; None if it has ended, reaped or not."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields[19]


def _kill_group(leader: int) -> None:
    """Kill the server's process group, of which the server is the leader, with all processes left in it."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True
