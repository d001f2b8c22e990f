"""An engine's sources against the table of its format: what is new, what is gone, what cannot be found."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import engine_fields
from scripts.engine_fields import SOURCES, Missing, class_fields, differences, known_fields, main

SOURCE = '''
from typing import ClassVar

class Other:
    field: int

class Request(Base):
    """One request."""
    model_config = ConfigDict(extra="allow")
    kind: ClassVar[str] = "x"
    _private: int = 0
    first: int
    second: str | None = Field(None, description="x")

    @property
    def third(self) -> int: ...

class Choice(Request):
    first: int
    fourth: int
'''


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "engine" / "api"
    folder.mkdir(parents=True)
    (folder / "protocol.py").write_text(SOURCE)
    (folder / "broken.py").write_text("class Unrelated(")
    return tmp_path / "engine"


def test_fields_are_the_annotated_public_ones(package: Path) -> None:
    """No constants, no properties, nothing private, each name once however many classes have it."""
    assert class_fields(package, files="api/*.py", classes=["Request"]) == ["first", "second"]
    assert class_fields(package, files="**/*.py", classes=["Request", "Gone", "Choice"]) == [
        "first",
        "second",
        "fourth",
    ]


def test_class_that_is_nowhere_is_named(package: Path) -> None:
    """A source that has moved is not an engine without fields."""
    with pytest.raises(Missing, match="no class Gone in engine/api/"):
        class_fields(package, files="api/*.py", classes=["Gone"])


@pytest.mark.parametrize("engine", sorted(SOURCES))
def test_every_group_of_a_format_is_looked_for(engine: str) -> None:
    """The places and the table belong together."""
    assert SOURCES[engine].keys() == known_fields(engine).keys()


def test_new_and_removed_fields_are_reported_apart(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New is a field that only the engine has, gone one that only the format has."""
    monkeypatch.setattr(
        engine_fields,
        "SOURCES",
        {"vllm": {"request": lambda found: class_fields(found, files="api/*.py", classes=["Request"])}},
    )
    monkeypatch.setattr(engine_fields, "known_fields", lambda engine: {"request": {"first": 1, "old": 2}})
    found = differences("vllm", package)
    assert [str(difference) for difference in found] == ["new request.second", "gone request.old"]


def test_program_says_what_it_found(
    package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """1 for something new, 0 for nothing, 2 where it cannot tell."""
    monkeypatch.setattr(
        engine_fields,
        "SOURCES",
        {"vllm": {"request": lambda found: class_fields(found, files="api/*.py", classes=["Request"])}},
    )
    for known, code, output in (
        ({"first": 1}, 1, "new request.second\n"),
        ({"first": 1, "second": 1, "old": 1}, 0, "gone request.old\n"),
        ({"first": 1, "second": 1}, 0, ""),
    ):
        monkeypatch.setattr(engine_fields, "known_fields", lambda engine, known=known: {"request": known})
        assert main(["vllm", str(package)]) == code
        assert capsys.readouterr().out == output
    assert main(["vllm", str(package / "api" / "nothing")]) == 2
    assert "no class Request" in capsys.readouterr().err
    assert main([]) == main(["unheard"]) == 2
    assert "usage" in capsys.readouterr().err
