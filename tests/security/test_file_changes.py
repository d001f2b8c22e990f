"""Detection of changed files."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.loop.tasks import Tasks
from gateway.security.file_changes import INTERVAL, FileChanges, keep_fresh
from tests.support.gateway import until


@pytest.mark.parametrize("path", [Path(__file__), Path("/nowhere")])
def test_change_is_reported_once_and_again_if_the_file_could_not_be_used(path: Path) -> None:
    seen = FileChanges([path])
    assert [seen.changed() for _ in range(3)] == [True, False, False]
    seen.retry()
    assert seen.changed()


class _Thing:
    def __init__(self, path: Path) -> None:
        self.file_changes = FileChanges([path])
        self.read: list[str] = []
        self._path = path

    def refresh(self) -> None:
        self.read.append(self._path.read_text())


@pytest.mark.virtual_time
async def test_each_is_refreshed_when_its_own_file_changed(tmp_path: Path) -> None:
    paths = [tmp_path / "one", tmp_path / "two"]
    for path in paths:
        path.write_text("old")
    one, two = map(_Thing, paths)
    tasks = Tasks()
    tasks.spawn(keep_fresh([one, two]), "test")
    await until(lambda: bool(one.read) and bool(two.read))
    await asyncio.sleep(10 * INTERVAL)
    read = len(two.read)
    paths[0].write_text("new")
    await until(lambda: one.read[-1] == "new")
    assert two.read == ["old"] * read
    await tasks.stop()


async def test_keeping_nothing_fresh_returns() -> None:
    async with asyncio.timeout(1):
        await keep_fresh([])
