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


def test_page_writes_every_file_of_the_package_and_no_other() -> None:
    found = [path.relative_to(SAMPLE) for path in SAMPLE.rglob("*") if path.suffix in (".py", ".toml")]
    own = {str(path) for path in found if not {"__pycache__", "tests"} & set(path.parts)}
    assert set(FILES) == own


@pytest.mark.parametrize("name", FILES)
def test_code_on_the_page_is_the_samples(name: str) -> None:
    """Blank lines between blocks do not count."""
    shown, own = (code.split("\n") for code in (FILES[name], (SAMPLE / name).read_text()))
    assert list(filter(None, shown)) == list(filter(None, own))


def test_every_required_member_is_defined_and_every_optional_one_is_named_on_the_page() -> None:
    code = FILES["gateway_echo/__init__.py"]
    for name in registry.REQUIRED:
        assert re.search(rf"^    (def {name}\(|{name} = )", code, re.MULTILINE), name
    assert all(
        f"`{name}`" in TEXT
        for name in (*registry.OPTIONAL, "routes", "settings", "loads", "enabled_by", "card_defaults")
    )


def test_every_law_has_its_row() -> None:
    text = (page.PAGE.parent / "testing.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == [law.__name__ for law in LAWS]
