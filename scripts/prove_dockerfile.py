"""Runs the Dockerfile's steps in an empty folder, for machines without Docker.

Owns: reading the Dockerfile and running each line: every stage in its own root folder, with a bare Python as
its base image, then the image's entry point, health check and stop signal. Must never enter: a copy of any
step; only what is in the Dockerfile is run.

``python -m scripts.prove_dockerfile`` exits 0 if everything succeeded. Not covered: the base image, and what
needs a kernel namespace (the exposed ports).
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: The only folder that the Dockerfile uses; its paths are moved below a temporary folder.
INSIDE = "/app"

READY_WITHIN = 30.0
STOPS_WITHIN = 20.0


class Unproved(Exception):
    """A step failed, or this script does not support it."""


@dataclass
class Image:
    """The settings of a stage from the lines read so far."""

    env: dict[str, str]
    workdir: str = INSIDE
    user: str = "0"
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    healthcheck: list[str] = field(default_factory=list)


class Builder:
    """A builder that runs instructions one by one, from the ``context`` and below ``folder``."""

    def __init__(self, folder: Path, context: Path) -> None:
        self._folder = folder
        self._context = context
        self._stages: dict[str, Path] = {}
        self._name = ""
        self.image = Image(env={})

    @property
    def root(self) -> Path:
        """Return the folder for ``/app``. All stages share it, so that paths in scripts stay valid."""
        return self._folder / "app"

    def do(self, word: str, rest: str) -> None:
        """Run one instruction. Raises Unproved."""
        if word not in _STEPS:
            raise Unproved(f"{word} is not an instruction this script can prove")
        print(f"{word} {rest}", flush=True)
        _STEPS[word](self, rest)

    def moved(self, text: str) -> str:
        """Return ``text`` with the paths of the image replaced by those of the temporary folder."""
        return re.sub(rf"(?<![\w./-]){INSIDE}(?![\w.-])", str(self.root), text)

    def run(self, command: list[str]) -> None:
        done = subprocess.run(command, env=self.image.env, cwd=self.moved(self.image.workdir), check=False)
        if done.returncode:
            raise Unproved(f"exit {done.returncode} of: {shlex.join(command)}")

    def from_(self, rest: str) -> None:
        _, _, name = rest.partition(" AS ")
        if self.root.exists():
            self._stages[self._name] = self.root.rename(self._folder / f"stage-{self._name}")
        self._name = name
        self.root.mkdir()
        base = self._folder / f"base-{name}"
        subprocess.run([sys.executable, "-m", "venv", str(base)], check=True)
        passed = {key: value for key, value in os.environ.items() if key.startswith(("PIP_", "SSL_", "LANG"))}
        self.image = Image(env={**passed, "PATH": f"{base}/bin:/usr/bin:/bin", "HOME": str(self._folder)})

    def env(self, rest: str) -> None:
        for pair in shlex.split(rest):
            name, _, value = pair.partition("=")
            self.image.env[name] = self.moved(value).replace("$PATH", self.image.env["PATH"])

    def workdir(self, rest: str) -> None:
        self.image.workdir = rest
        Path(self.moved(rest)).mkdir(parents=True, exist_ok=True)

    def copy(self, rest: str) -> None:
        *sources, target = rest.split()
        destination = Path(self.moved(self.image.workdir), self.moved(target))
        if sources[0].startswith("--from="):
            stage = self._stages[sources.pop(0).removeprefix("--from=")]
            origins = [stage / Path(source).relative_to(INSIDE) for source in sources]
        else:
            origins = [self._in_context(source) for source in sources]
        for origin in origins:
            if origin.is_dir():
                shutil.copytree(origin, destination, symlinks=True, ignore=_ignored)
            else:
                destination.mkdir(parents=True, exist_ok=True)
                shutil.copy(origin, destination)

    def run_shell(self, rest: str) -> None:
        self.run(["/bin/sh", "-c", self.moved(rest)])

    def user(self, rest: str) -> None:
        if rest.split(":")[0] in {"0", "root"}:
            raise Unproved("the image would run as root")
        self.image.user = rest

    def entrypoint(self, rest: str) -> None:
        self.image.entrypoint = json.loads(rest)

    def cmd(self, rest: str) -> None:
        self.image.command = json.loads(rest)

    def healthcheck(self, rest: str) -> None:
        self.image.healthcheck = json.loads(rest.partition("CMD ")[2])

    def nothing(self, rest: str) -> None:
        """Ignore EXPOSE, which only documents, and STOPSIGNAL, which is read when the image is stopped."""

    def _in_context(self, source: str) -> Path:
        allowed = [line[1:] for line in _lines(self._context / ".dockerignore") if line.startswith("!")]
        if source not in allowed:
            raise Unproved(f".dockerignore keeps {source} out of the build")
        return self._context / source


_STEPS = {
    "FROM": Builder.from_,
    "ENV": Builder.env,
    "WORKDIR": Builder.workdir,
    "COPY": Builder.copy,
    "RUN": Builder.run_shell,
    "USER": Builder.user,
    "ENTRYPOINT": Builder.entrypoint,
    "CMD": Builder.cmd,
    "HEALTHCHECK": Builder.healthcheck,
    "EXPOSE": Builder.nothing,
    "STOPSIGNAL": Builder.nothing,
}


def instructions(dockerfile: str) -> list[tuple[str, str]]:
    """Return keyword and arguments of every instruction, with continued lines joined and comments removed."""
    kept = [line for line in dockerfile.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(kept))
    split = [line.partition(" ") for line in joined.splitlines() if line.strip()]
    return [(word, rest.strip()) for word, _, rest in split]


def prove(folder: Path) -> None:
    """Build below ``folder``, then run the image. Raises Unproved."""
    builder = Builder(folder, ROOT)
    for word, rest in instructions((ROOT / "Dockerfile").read_text()):
        builder.do(word, rest)
    image = builder.image
    if image.user == "0":
        raise Unproved("no USER: the image would run as root")
    extra = sorted(path.name for path in builder.root.iterdir() if path.name != "venv")
    if extra:
        raise Unproved(f"the image holds more than its environment: {extra}")
    _run_image(image)


def _run_image(image: Image) -> None:
    """Start the image on a free port, wait for its health check, and stop it as an orchestrator would."""
    env = {**image.env, "DYN_HTTP_HOST": "127.0.0.1", "DYN_HTTP_PORT": str(_free_port())}
    command = [*image.entrypoint, *image.command]
    print("run:", shlex.join(command), flush=True)
    # An exec form finds its program on the image's PATH, not on ours.
    program = shutil.which(command[0], path=env["PATH"]) or command[0]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([program, *command[1:]], env=env, stderr=log)
        try:
            _wait_until_healthy(image, env, process)
            process.send_signal(signal.SIGTERM)
            status = process.wait(STOPS_WITHIN)
        except subprocess.TimeoutExpired:
            raise Unproved(f"it did not stop within {STOPS_WITHIN:.0f} s of SIGTERM") from None
        finally:
            process.kill()
            process.wait()
            log.seek(0)
            message = log.read()
            print(message, end="", flush=True)
    if status not in {0, -signal.SIGTERM}:
        raise Unproved(f"it ended with status {status} on SIGTERM")
    if " ERROR " in message:
        raise Unproved("it logged an error, though nothing was asked of it")


def _wait_until_healthy(image: Image, env: dict[str, str], process: subprocess.Popen[bytes]) -> None:
    check = [shutil.which(image.healthcheck[0], path=env["PATH"]) or "", *image.healthcheck[1:]]
    deadline = time.monotonic() + READY_WITHIN
    while subprocess.run(check, env=env, stderr=subprocess.DEVNULL, check=False).returncode:
        if process.poll() is not None:
            raise Unproved(f"it ended at once, with status {process.returncode}")
        if time.monotonic() > deadline:
            raise Unproved(f"its health check did not pass within {READY_WITHIN:.0f} s")
        time.sleep(0.2)
    print("healthy", flush=True)


def _ignored(_: str, names: list[str]) -> list[str]:
    return [name for name in names if fnmatch.fnmatch(name, "__pycache__") or name.endswith(".pyc")]


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            prove(Path(folder).resolve())
        except Unproved as reason:
            print(f"the Dockerfile does not hold: {reason}", file=sys.stderr)
            return 1
    print(f"every step of the Dockerfile holds ({time.monotonic() - began:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
