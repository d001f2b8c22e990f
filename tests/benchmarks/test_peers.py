"""A router that is not installed is left out, with a note on how to install it."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import peers
from benchmarks.peers import PEERS, find, start_peers
from benchmarks.processes import Processes


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    monkeypatch.setattr(peers, "_SBIN", str(tmp_path / "nowhere"))


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\necho will not start; exit 3\n")
    path.chmod(0o755)
    return path


def test_every_router_that_is_missing_is_named_with_its_remedy() -> None:
    with Processes() as processes:
        targets, missing = start_peers(processes, [1], None)
    assert targets == []
    assert [text.split()[0] for text in missing] == ["haproxy", "sglang-router", "smg", "vllm-router"]
    assert "apt-get install haproxy" in missing[0]
    for text in missing[1:]:
        assert "pip install" in text and "--peers DIR" in text


def test_environment_below_the_folder_comes_before_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    smg = next(peer for peer in PEERS if peer.name == "smg")
    on_path = executable(tmp_path / "bin" / "smg")
    monkeypatch.setenv("PATH", str(on_path.parent))
    assert find(smg, tmp_path) == str(on_path)
    own = executable(tmp_path / "smg" / "bin" / "smg")
    assert find(smg, tmp_path) == str(own)


def test_router_that_does_not_start_is_missing_with_the_end_of_its_log(tmp_path: Path) -> None:
    executable(tmp_path / "vllmr" / "bin" / "vllm-router")
    with Processes() as processes:
        _, missing = start_peers(processes, [1], tmp_path)
    assert any("vllm-router did not come up" in text and "echo" not in text for text in missing)
    assert any("will not start" in text for text in missing)
