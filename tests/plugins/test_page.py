"""docs/writing-a-format.md is the sample package; the fixture ``target`` installs the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.formats import registry
from gateway.testing.laws import LAWS
from tests.plugins import page

SAMPLE = Path(__file__).parent / "echo"
TEXT = page.PAGE.read_text()
FILES = page.package()


def lines(code: str) -> list[str]:
    """Return the lines of code; blank lines between blocks do not count."""
    return [line for line in code.splitlines() if line]


def test_page_writes_every_file_of_the_package_and_no_other() -> None:
    on_disk = {
        str(path.relative_to(SAMPLE))
        for path in SAMPLE.rglob("*")
        if path.suffix in (".py", ".toml")
        and not {"__pycache__", "tests"} & set(path.parts[len(SAMPLE.parts) :])
    }
    assert set(FILES) == on_disk


@pytest.mark.parametrize("name", FILES)
def test_code_on_the_page_is_the_samples(name: str) -> None:
    assert lines(FILES[name]) == lines((SAMPLE / name).read_text())


def test_code_on_the_page_is_what_is_installed(target: Path) -> None:
    for name in ("gateway_echo/__init__.py", "gateway_echo/reader.py"):
        assert (target / name).read_text() == FILES[name]


def test_page_is_short() -> None:
    """An author can read it in one sitting."""
    assert len(TEXT.splitlines()) <= 300


def test_every_required_member_is_defined_on_the_page() -> None:
    code = FILES["gateway_echo/__init__.py"]
    for name in registry.REQUIRED:
        assert re.search(rf"^    (def {name}\(|{name} = )", code, re.MULTILINE), name


def test_every_optional_member_is_named_on_the_page() -> None:
    assert all(f"`{name}`" in TEXT for name in (*registry.OPTIONAL, "routes", "settings", "loads"))


def test_every_law_has_its_row() -> None:
    text = (page.PAGE.parent / "testing.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == [law.__name__ for law in LAWS]
