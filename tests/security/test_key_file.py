"""A file of keys: its format, its changes, its absence."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.security.key_file import MAX_BYTES, MAX_KEYS, KeySource, UnusableKeys


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "keys"
    found.write_text("one\n")
    return found


def _knows(source: KeySource, *keys: str) -> list[bool]:
    return [source.keys.has(key.encode()) for key in keys]


def test_one_key_a_line_with_comments_and_blanks(file: Path) -> None:
    file.write_bytes(b"\xef\xbb\xbf# ours\r\n  one  \r\n\n#two\nthree")
    source = KeySource(None, str(file))
    assert _knows(source, "one", "three", "#two", "two") == [True, True, False, False]
    assert len(source.keys) == 2


def test_key_from_the_settings_is_added_to_those_of_the_file(file: Path) -> None:
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


def test_keys_of_a_deleted_file_stay_valid_until_it_is_back(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
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


def test_new_keys_are_valid_and_old_ones_are_not(file: Path) -> None:
    """The file is overwritten, replaced, or behind a link that is replaced, as Kubernetes does it."""
    link = file.with_name("link")
    link.symlink_to(file)
    source = KeySource(None, str(link))
    source.file_changes.changed()
    assert not source.file_changes.changed()

    def over() -> None:
        file.write_text("two\n")

    def moved() -> None:
        file.with_name("new").write_text("three\n")
        os.replace(file.with_name("new"), file)

    def relinked() -> None:
        file.with_name("other").write_text("four\n")
        file.with_name("newlink").symlink_to(file.with_name("other"))
        os.replace(file.with_name("newlink"), link)

    names = ["one", "two", "three", "four"]
    for number, change in enumerate((over, moved, relinked), 1):
        change()
        assert source.file_changes.changed()
        source.refresh()
        assert _knows(source, *names) == [index == number for index in range(4)]
