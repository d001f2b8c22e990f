"""Installs the sample format of docs/writing-a-format.md in a folder of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.plugins import page

SAMPLE = Path(__file__).parent / "echo"


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the installed sample; only tests that use ``installed`` have it on their path."""
    project, folder = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("site")
    page.write(project)
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--no-compile"]
    subprocess.run([*install, *offline, "--target", str(folder), str(project)], check=True, timeout=50)
    return folder


@pytest.fixture
def installed(target: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Install the sample for one test."""
    monkeypatch.syspath_prepend(str(target))
    yield target
    for name in [name for name in sys.modules if name.partition(".")[0] == "gateway_echo"]:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def _installed_for_its_own_tests(request: pytest.FixtureRequest) -> None:
    """The sample's own tests run with it installed, as for its author."""
    if request.path.is_relative_to(SAMPLE):
        request.getfixturevalue("installed")
