"""A file of keys: its format, its changes, its absence."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from gateway.loop.tasks import Tasks
from gateway.security.file_changes import INTERVAL, FileChanges, keep_fresh
from gateway.security.key_file import MAX_BYTES, MAX_KEYS, KeySource, UnusableKeys
from tests.support.gateway import until


def _file(folder: Path, name: str, key: str) -> Path:
    found = folder / name
    found.write_text(f"{key}\n")
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return _file(tmp_path, "keys", "one")


def _knows(source: KeySource, *keys: str) -> list[bool]:
    return [source.keys.has(key.encode()) for key in keys]


def test_one_key_a_line_with_comments_and_blanks(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf# ours\r\n  one  \r\n\n#two\nthree")
    source = KeySource(None, str(file))
    assert _knows(source, "one", "three", "#two", "two") == [True, True, False, False]
    assert len(source.keys) == 2
    # A key from the settings is added.
    assert _knows(KeySource(b"given", str(file)), "given", "one") == [True, True]
    assert _knows(KeySource(b"given", None), "given", "one") == [True, False]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "contains no key"),
        (b"# nothing\n\n", "contains no key"),
        (b"good\nwith a blank\n", "line 2 is not a key"),
        (b"caf\xc3\xa9\n", "line 1 is not a key"),
        (b"x" * (MAX_BYTES + 1), "over the limit"),
        (b"".join(b"key%d\n" % number for number in range(MAX_KEYS + 1)), "over the limit"),
    ],
    ids=["empty", "comments", "blank", "not-ascii", "large", "many"],
)
def test_file_that_cannot_be_used(
    content: bytes, problem: str, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At the start that is an error. Later the previous keys stay valid, with one warning in the log."""
    source = KeySource(None, str(file))
    file.write_bytes(content)
    for _ in range(3):
        source.refresh()
    assert _knows(source, "one") == [True]
    assert caplog.text.count(problem) == 1
    assert "café" not in caplog.text and "with a blank" not in caplog.text
    with pytest.raises(UnusableKeys, match=problem):
        KeySource(None, str(file))


def test_keys_of_a_deleted_file_stay_valid(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A named pipe in place of the file does not block the event loop."""
    source = KeySource(None, str(file))
    file.unlink()
    source.refresh()
    assert _knows(source, "one") == [True]
    assert "No such file" in caplog.text
    os.mkfifo(file)
    source.refresh()
    assert _knows(source, "one") == [True]
    assert "not a regular file" in caplog.text
    file.unlink()
    file.write_text("two\n")
    source.refresh()
    assert _knows(source, "one", "two") == [False, True]
    with pytest.raises(OSError, match="No such file"):
        KeySource(None, str(file.with_name("nowhere")))


def test_new_keys_are_valid_and_old_ones_are_not(file: Path, tmp_path: Path) -> None:
    """The file is overwritten, replaced, or behind a link that is replaced, as Kubernetes does it."""
    link = file.with_name("link")
    link.symlink_to(file)
    source = KeySource(None, str(link))
    source.file_changes.changed()
    assert not source.file_changes.changed()

    def over() -> None:
        file.write_text("two\n")

    def moved() -> None:
        os.replace(_file(tmp_path, "new", "three"), file)

    def relinked() -> None:
        file.with_name("newlink").symlink_to(_file(tmp_path, "other", "four"))
        os.replace(file.with_name("newlink"), link)

    for key, change in (("two", over), ("three", moved), ("four", relinked)):
        change()
        assert source.file_changes.changed()
        source.refresh()
        assert [name for name in ("one", "two", "three", "four") if _knows(source, name) == [True]] == [key]


# -- detection of changed files


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
    await keep_fresh([])  # returns
