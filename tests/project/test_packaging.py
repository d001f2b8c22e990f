"""Packaging: locks, make targets, the wheel, the container image."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from scripts import compile_hook
from scripts.prove_dockerfile import instructions

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ("requirements.lock", "requirements-dev.lock", "requirements-build.lock")
ENGINE_LOCKS = ("scripts/engines/sglang.lock", "scripts/engines/vllm.lock")


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def hook() -> dict[str, Any]:
    """The hook of the compiled build."""
    found: dict[str, Any] = project()["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    return found


def pins(lock: str) -> dict[str, str]:
    """Name to version of everything in ``lock``."""
    found = re.findall(r"^([A-Za-z0-9_.-]+)==([^\s;\\]+)", (ROOT / lock).read_text(), re.MULTILINE)
    return {canonical(name): version for name, version in found}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def required(requirements: list[str]) -> set[str]:
    return {canonical(re.split(r"[^A-Za-z0-9_.-]", each, maxsplit=1)[0]) for each in requirements}


def build_wheel(folder: Path) -> subprocess.CompletedProcess[str]:
    build = "import hatchling.build, sys; print(hatchling.build.build_wheel(sys.argv[1]))"
    return subprocess.run([sys.executable, "-c", build, folder], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("lock", [*LOCKS, *ENGINE_LOCKS])
def test_lock_pins_everything_by_hash_and_names_no_place(lock: str) -> None:
    """pip installs only the files that existed when the lock was made, wherever the machine gets them."""
    text = (ROOT / lock).read_text()
    assert not re.search(r"://|--(?:extra-)?index|--find-links|--trusted-host| @ |file:", text)
    entries = re.split(r"\n(?=\S)", text.strip()) if lock in LOCKS else []
    assert entries or lock in ENGINE_LOCKS
    for entry in entries:
        assert re.match(r"[a-z0-9_.-]+==\S+", entry), entry
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry


def test_locks_agree_on_versions_and_hold_what_the_project_asks_for() -> None:
    """The tested versions are the shipped ones; a dependency is locked before it can be used."""
    meta = project()
    product, build, dev = map(pins, ("requirements.lock", "requirements-build.lock", "requirements-dev.lock"))
    assert product.items() | build.items() <= dev.items()
    runtime = required(meta["project"]["dependencies"])
    tools = required(meta["project"]["optional-dependencies"]["dev"])
    assert runtime <= product.keys() and not tools & product.keys()
    assert (
        required(meta["build-system"]["requires"]) | required(hook()["dependencies"]) | runtime
        <= build.keys()
    )
    assert runtime | tools <= dev.keys()


def test_installed_distribution_has_the_version_and_the_entry_points_of_the_project() -> None:
    distribution = metadata.distribution("tito-gateway")
    assert distribution.version == project()["project"]["version"]
    formats = {("gateway.formats", "sglang"), ("gateway.formats", "vllm")}
    names = {(point.group, point.name) for point in distribution.entry_points}
    assert {("console_scripts", "tito-gateway"), *formats} <= names


def test_wheel_holds_the_package_and_nothing_else_and_is_pure_unless_asked(tmp_path: Path) -> None:
    """Tests, fixtures and scripts stay out; the type marker and the licence go in."""
    assert hook()["enable-by-default"] is False
    wheel = tmp_path / build_wheel(tmp_path).stdout.split()[-1]
    assert wheel.name.endswith("-none-any.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"gateway", "tito_gateway"}
    assert "gateway/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


WAITS = (ast.Await, ast.Yield, ast.YieldFrom, ast.AsyncFor, ast.AsyncWith)
#: Entered by ``async with``, these do not wait when they are left.
NO_WAIT_AT_THE_END = re.compile(r"asyncio\.timeout\(|worker\.quotas\.")
#: Calls without a side effect.
HARMLESS = re.compile(r"(len|min|max|\w+\.(start|end|find))\(")


@pytest.mark.parametrize("module", hook()["modules"])
def test_compiled_module_has_nothing_that_mypyc_compiles_wrongly(module: str) -> None:
    """Keywords of a class are ignored: a frozen struct would not be frozen.

    In a coroutine, a handled exception stays current for other tasks during a wait; if it is raised again, it
    stays current for ever, and every later exception refers to it. ``gather`` of single arguments is expected
    to return a tuple, but returns a list. Bounds of a slice may be evaluated twice.
    """
    nodes = list(ast.walk(ast.parse((ROOT / module).read_text())))
    assert [each.name for each in nodes if isinstance(each, ast.ClassDef) and each.keywords] == []
    tries = [each for each in nodes if isinstance(each, ast.Try)]
    cleared = [part for each in tries for part in (*each.handlers, *each.finalbody)]
    assert [each.lineno for part in cleared for each in ast.walk(part) if isinstance(each, WAITS)] == []
    entered = [item.context_expr for each in nodes if isinstance(each, ast.AsyncWith) for item in each.items]
    assert [text for each in entered if not NO_WAIT_AT_THE_END.match(text := ast.unparse(each))] == []
    calls = [each for each in nodes if isinstance(each, ast.Call)]
    gathered = [each.args for each in calls if ast.unparse(each.func) == "asyncio.gather"]
    assert all(isinstance(arg, ast.Starred) for args in gathered for arg in args)
    bounds = [part for each in nodes if isinstance(each, ast.Slice) for part in ast.walk(each)]
    called = [ast.unparse(each) for each in bounds if isinstance(each, ast.Call)]
    assert [text for text in called if not HARMLESS.match(text)] == []
    assert not [each for each in bounds if isinstance(each, ast.NamedExpr)]


def test_compiler_and_headers_that_are_missing_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -O2")
    assert "no C compiler 'no-such-compiler'" in str(compile_hook.obstacle())
    monkeypatch.setenv("CC", sys.executable)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert f"there is no {tmp_path}/Python.h" in str(compile_hook.obstacle())
    (tmp_path / "Python.h").touch()
    assert compile_hook.obstacle() is None


def test_compiled_build_that_is_impossible_ends_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backend says why, without a traceback, and leaves no wheel."""
    monkeypatch.setenv("HATCH_BUILD_HOOK_ENABLE_CUSTOM", "1")
    monkeypatch.setenv("CC", "no-such-compiler")
    done = build_wheel(tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("a compiled build is not possible here: there is no C compiler")
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_make_lists_its_targets_and_refuses_an_old_python(tmp_path: Path) -> None:
    """The error names the interpreter, its version, and the way out."""

    def make(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["make", "--no-print-directory", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    for name in ("Makefile", "requirements-dev.lock", "pyproject.toml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    listed = {line.split()[0] for line in make().stdout.splitlines()}
    assert {"install", "demo", "test", "check", "test-engines", "compile", "test-compiled"} <= listed
    old = tmp_path / "old-python"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.1" && exit 0\nexit 1\n')
    old.chmod(0o755)
    done = make("install", f"PYTHON={old}")
    assert done.returncode != 0
    for text in (f"Python 3.11 or newer is needed, but '{old}'", "3.9.1", "make PYTHON="):
        assert text in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_image_has_no_build_tools_runs_as_nobody_and_installs_by_hash_only() -> None:
    """It is built in two stages; every package from a registry is in a lock."""
    steps = instructions((ROOT / "Dockerfile").read_text())
    words = [word for word, _ in steps]
    assert words.count("FROM") == 2
    last = steps[len(words) - words[::-1].index("FROM") :]
    stage = dict(last)
    assert stage["USER"].split(":")[0] not in {"root", "0"}
    assert (stage["ENTRYPOINT"], stage["CMD"]) == ('["tito-gateway"]', '["serve"]')
    assert "HEALTHCHECK" in stage and "RUN" not in stage
    installs = [rest for word, rest in steps if word == "RUN" and "pip install" in rest]
    assert installs
    assert all("--require-hashes" in rest or "--no-index" in rest for rest in installs)
