"""Noticing that a file changed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.loop.tasks import Tasks
from gateway.security import file_changes as file_changes
from gateway.security.file_changes import FileChanges, keep_fresh
from tests.support.gateway import until


def test_change_is_told_twice_and_nothing_else() -> None:
    """Twice, as the file may be written within one tick of its clock."""
    path = Path(__file__)
    seen = FileChanges([path])
    assert [seen.changed() for _ in range(3)] == [True, False, False]


def test_what_could_not_be_used_is_looked_at_again(tmp_path: Path) -> None:
    seen = FileChanges([tmp_path / "nowhere"])
    assert [seen.changed(), seen.changed()] == [True, False]
    seen.again()
    assert seen.changed()


class _Thing:
    def __init__(self, path: Path) -> None:
        self.file_changes = FileChanges([path])
        self.read: list[str] = []
        self._path = path

    def refresh(self) -> None:
        self.read.append(self._path.read_text())


async def test_each_is_refreshed_when_its_own_file_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_changes, "INTERVAL", 0.005)
    paths = [tmp_path / "one", tmp_path / "two"]
    for path in paths:
        path.write_text("old")
    one, two = map(_Thing, paths)
    tasks = Tasks()
    tasks.spawn(keep_fresh([one, two]), "test")
    await until(lambda: bool(one.read) and bool(two.read))
    await asyncio.sleep(0.05)
    read = len(two.read)
    paths[0].write_text("new")
    await until(lambda: one.read[-1] == "new")
    assert two.read == ["old"] * read
    await tasks.stop()


async def test_nothing_to_keep_fresh_is_no_task_for_ever() -> None:
    async with asyncio.timeout(1):
        await keep_fresh([])
