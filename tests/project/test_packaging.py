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


def pins(lock: str) -> dict[str, str]:
    """Name to version of everything in ``lock``."""
    found = re.findall(r"^([A-Za-z0-9_.-]+)==([^\s;\\]+)", (ROOT / lock).read_text(), re.MULTILINE)
    return {canonical(name): version for name, version in found}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def required(requirements: list[str]) -> set[str]:
    return {
        canonical(re.split(r"[^A-Za-z0-9_.-]", requirement, maxsplit=1)[0]) for requirement in requirements
    }


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_pins_everything_by_hash(lock: str) -> None:
    """pip installs only the files that existed when the lock was made."""
    entries = re.split(r"\n(?=\S)", (ROOT / lock).read_text().strip())
    assert entries
    for entry in entries:
        assert re.match(r"[a-z0-9_.-]+==\S+", entry), entry
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry


@pytest.mark.parametrize("lock", [*LOCKS, *ENGINE_LOCKS])
def test_lock_names_no_place(lock: str) -> None:
    """The installing machine decides where packages come from."""
    text = (ROOT / lock).read_text()
    assert not re.search(r"://|--(?:extra-)?index|--find-links|--trusted-host| @ |file:", text)


def test_locks_agree_on_versions() -> None:
    """The tested versions are the shipped ones."""
    everything = pins("requirements-dev.lock")
    for lock in ("requirements.lock", "requirements-build.lock"):
        part = pins(lock)
        assert part == {name: everything[name] for name in part}


def test_locks_hold_what_the_project_asks_for() -> None:
    """A dependency added to pyproject.toml is locked before it can be used."""
    meta = project()
    runtime = required(meta["project"]["dependencies"])
    build = required(meta["build-system"]["requires"])
    dev = required(meta["project"]["optional-dependencies"]["dev"])
    assert runtime <= pins("requirements.lock").keys()
    assert build <= pins("requirements-build.lock").keys()
    assert runtime | build | dev <= pins("requirements-dev.lock").keys()
    assert not dev & pins("requirements.lock").keys()


def test_version_stands_in_one_place() -> None:
    """The installed distribution has the version of pyproject.toml, and its entry points."""
    distribution = metadata.distribution("tito-gateway")
    assert distribution.version == project()["project"]["version"]
    names = {(point.group, point.name) for point in distribution.entry_points}
    assert {
        ("console_scripts", "tito-gateway"),
        ("gateway.formats", "sglang"),
        ("gateway.formats", "vllm"),
    } <= names


def test_wheel_holds_the_package_and_nothing_else(tmp_path: Path) -> None:
    """Tests, fixtures and scripts stay out; the type marker and the licence go in."""
    build = "import hatchling.build, sys; print(hatchling.build.build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, tmp_path], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = zipfile.ZipFile(tmp_path / done.stdout.split()[-1]).namelist()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"gateway", "tito_gateway"}
    assert "gateway/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


WAITS = (ast.Await, ast.Yield, ast.YieldFrom, ast.AsyncFor, ast.AsyncWith)


def compiled_modules() -> list[Path]:
    """The sources that a compiled build compiles."""
    hook = project()["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    return [ROOT / module for module in hook["modules"]]


def test_build_is_pure_unless_asked() -> None:
    hook = project()["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    assert hook["enable-by-default"] is False


def test_locks_hold_what_a_compiled_build_asks_for() -> None:
    hook = project()["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    runtime = required(project()["project"]["dependencies"])
    for lock in ("requirements-build.lock", "requirements-dev.lock"):
        assert required(hook["dependencies"]) | runtime <= pins(lock).keys()


@pytest.mark.parametrize("module", compiled_modules(), ids=lambda module: str(module.relative_to(ROOT)))
def test_compiled_module_has_no_class_with_keywords(module: Path) -> None:
    """mypyc ignores them: a frozen struct would not be frozen."""
    classes = [node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.ClassDef)]
    assert [each.name for each in classes if each.keywords] == []


@pytest.mark.parametrize("module", compiled_modules(), ids=lambda module: str(module.relative_to(ROOT)))
def test_compiled_module_waits_nowhere_while_it_handles_an_exception(module: Path) -> None:
    """In coroutines compiled by mypyc, the handled exception stays current for other tasks during the wait.

    If it is raised again, it stays current for ever, and every later exception refers to it.
    """
    tree = ast.parse(module.read_text())
    tries = [node for node in ast.walk(tree) if isinstance(node, ast.Try)]
    cleared = [part for each in tries for part in (*each.handlers, *each.finalbody)]
    assert [each.lineno for part in cleared for each in ast.walk(part) if isinstance(each, WAITS)] == []
    # These do not wait when they are left.
    harmless = re.compile(r"asyncio\.timeout\(|slots$|worker\.quotas\.")
    entered = [each for node in ast.walk(tree) if isinstance(node, ast.AsyncWith) for each in node.items]
    assert [text for each in entered if not harmless.match(text := ast.unparse(each.context_expr))] == []


@pytest.mark.parametrize("module", compiled_modules(), ids=lambda module: str(module.relative_to(ROOT)))
def test_compiled_module_gathers_a_list(module: Path) -> None:
    """mypyc expects the tuple that ``gather`` is declared to return for single arguments; it is a list."""
    calls = [node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Call)]
    gathers = [each for each in calls if ast.unparse(each.func) == "asyncio.gather"]
    assert [
        each.lineno for each in gathers if not all(isinstance(arg, ast.Starred) for arg in each.args)
    ] == []


@pytest.mark.parametrize("module", compiled_modules(), ids=lambda module: str(module.relative_to(ROOT)))
def test_bounds_of_a_slice_in_a_compiled_module_do_nothing(module: Path) -> None:
    """mypyc evaluates them twice if it does not know the sliced type, so a side effect would happen twice."""
    slices = [node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Slice)]
    calls = [each for bounds in slices for each in ast.walk(bounds) if isinstance(each, ast.Call)]
    harmless = re.compile(r"(len|min|max|\w+\.(start|end|find))\(")
    assert [text for each in calls if not harmless.match(text := ast.unparse(each))] == []
    assert not [each for bounds in slices for each in ast.walk(bounds) if isinstance(each, ast.NamedExpr)]


@pytest.mark.parametrize(
    ("variables", "message"),
    [({"CC": "no-such-compiler -O2"}, "no C compiler 'no-such-compiler'"), ({"CC": sys.executable}, None)],
)
def test_compiler_that_is_missing_is_named(
    variables: dict[str, str], message: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = compile_hook.obstacle()
    assert found is None or "Python.h" in found if message is None else message in str(found)


def test_headers_that_are_missing_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", sys.executable)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert f"there is no {tmp_path}/Python.h" in str(compile_hook.obstacle())


def test_compiled_build_that_is_impossible_ends_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backend says why, without a traceback, and leaves no wheel."""
    monkeypatch.setenv("HATCH_BUILD_HOOK_ENABLE_CUSTOM", "1")
    monkeypatch.setenv("CC", "no-such-compiler")
    build = "import hatchling.build, sys; print(hatchling.build.build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, tmp_path], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("a compiled build is not possible here: there is no C compiler")
    assert len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_make_lists_every_chore() -> None:
    """`make` without a target lists the targets."""
    done = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    listed = {line.split()[0] for line in done.stdout.splitlines()}
    assert {"install", "demo", "test", "check", "test-engines", "compile", "test-compiled"} <= listed


def test_make_refuses_an_old_python(tmp_path: Path) -> None:
    """The error names the interpreter, its version, and the way out."""
    old = tmp_path / "old-python"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Python 3.9.1" && exit 0\nexit 1\n')
    old.chmod(0o755)
    copied = ("Makefile", "requirements-dev.lock", "pyproject.toml")
    for name in copied:
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    done = subprocess.run(
        ["make", "install", f"PYTHON={old}"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "Python 3.11 or newer is needed" in done.stderr
    assert "3.9.1" in done.stderr
    assert "make PYTHON=" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_image_is_built_in_two_stages_and_runs_as_nobody() -> None:
    """The image has no build tools, and its process does not run as root."""
    steps = instructions((ROOT / "Dockerfile").read_text())
    words = [word for word, _ in steps]
    assert words.count("FROM") == 2
    last = steps[len(words) - words[::-1].index("FROM") :]
    assert not [rest for word, rest in last if word == "RUN"]
    stage = dict(last)
    assert stage["USER"].split(":")[0] not in {"root", "0"}
    assert stage["ENTRYPOINT"] == '["tito-gateway"]'
    assert stage["CMD"] == '["serve"]'
    assert "HEALTHCHECK" in stage


def test_image_installs_by_hash_only() -> None:
    """Every package from a registry is in a lock."""
    steps = instructions((ROOT / "Dockerfile").read_text())
    installs = [rest for word, rest in steps if word == "RUN" and "pip install" in rest]
    assert installs
    assert all("--require-hashes" in rest or "--no-index" in rest for rest in installs)
