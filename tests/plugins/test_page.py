"""docs/writing-a-format.md is true. (Its package runs: the fixture ``target`` installs what it says.)"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.formats import registry
from gateway.formats.contract import Reader
from gateway.testing.laws import LAWS
from tests.plugins import page

SAMPLE = Path(__file__).parent / "echo"
TEXT = page.PAGE.read_text()
FILES = page.package()


def lines(code: str) -> list[str]:
    """How many blank lines part two blocks is the page's own business."""
    return [line for line in code.splitlines() if line]


def headings(section: str) -> list[str]:
    """The third-level headings of a section that are names of members, in their order."""
    [body] = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    return re.findall(r"^### `(\w+)`$", body, re.MULTILINE)


def members(protocol: type) -> list[str]:
    """Annotated ones first, each in the order of its declaration."""
    names = dict.fromkeys((*protocol.__annotations__, *vars(protocol)))
    return [name for name in names if not name.startswith("_")]


def test_page_writes_every_file_of_the_sample_and_no_other() -> None:
    on_disk = {
        str(path.relative_to(SAMPLE))
        for path in SAMPLE.rglob("*")
        if path.suffix in (".py", ".toml") and "__pycache__" not in path.parts
    }
    assert set(FILES) == on_disk


@pytest.mark.parametrize("name", FILES)
def test_code_on_the_page_is_the_samples(name: str) -> None:
    assert lines(FILES[name]) == lines((SAMPLE / name).read_text())


def test_code_on_the_page_is_what_is_installed(target: Path) -> None:
    for name in ("gateway_echo/__init__.py", "gateway_echo/reader.py"):
        assert (target / name).read_text() == FILES[name]


def test_every_required_member_of_a_format_has_its_heading() -> None:
    assert registry.REQUIRED.keys() <= set(headings("The members of a format"))


def test_every_member_of_a_reader_has_its_heading_too() -> None:
    assert headings("The members of a reader") == members(Reader)


def test_every_law_has_its_row() -> None:
    assert re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE) == [law.__name__ for law in LAWS]
