"""An engine's sources against the table of its format: what is new, what is gone, what cannot be found."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import engine_fields
from scripts.engine_fields import SOURCES, Missing, class_fields, known_fields, main

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


def test_fields_are_the_annotated_public_ones_of_the_classes_that_are_found(package: Path) -> None:
    """Each name once. A source that has moved is not an engine without fields."""
    found = class_fields(package, files="**/*.py", classes=["Request", "Gone", "Choice"])
    assert found == ["first", "second", "fourth"]
    with pytest.raises(Missing, match="no class Gone in engine/api/"):
        class_fields(package, files="api/*.py", classes=["Gone"])


@pytest.mark.parametrize("engine", sorted(SOURCES))
def test_every_group_of_a_format_is_looked_for(engine: str) -> None:
    assert SOURCES[engine].keys() == known_fields(engine).keys()


def test_program_lists_new_and_removed_fields_and_fails_for_new_ones(
    package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its status is 2 where it cannot tell."""

    def locate(found: Path) -> list[str]:
        return class_fields(found, files="api/*.py", classes=["Request"])

    monkeypatch.setattr(engine_fields, "SOURCES", {"vllm": {"request": locate}})
    for known, code, output in (
        ({"first": 1, "old": 1}, 1, "new request.second\ngone request.old\n"),
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
