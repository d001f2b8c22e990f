"""Every input that was kept is read as it should be, however it is cut; ``make fuzz`` looks for more."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from gateway.formats.sse import EventScanner
from tests.fuzz.__main__ import main
from tests.fuzz.hostile import usual_cuts
from tests.fuzz.target import CORPUS, Target
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_corpus_holds(name: str) -> None:
    """No crash, no other reading for other cuts, no byte that nobody sent."""
    target = TARGETS[name]
    kept = target.corpus()
    assert kept
    for path in kept:
        try:
            target.check(path.read_bytes())
        except Exception as error:
            error.add_note(f"fixtures/fuzz/{name}/{path.name}")
            raise


def test_corpus_has_no_folder_of_a_target_that_is_gone() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)


def test_usual_cuts_leave_the_bytes_as_they_are() -> None:
    data = b"HTTP/1.1 200 OK\r\n\r\n" * 9
    ways = usual_cuts(data)
    assert len(ways) > 2
    assert all(b"".join(pieces) == data and all(pieces) for pieces in ways)


def test_reader_whose_output_depends_on_the_cuts_is_found() -> None:
    """The law can fail: here a scanner that is new with each read."""

    def read(pieces: Sequence[bytes]) -> list[bytes]:
        return [event for piece in pieces for event, _ in EventScanner().feed(piece)]

    forgetful = Target("forgetful", read, lambda data, told: None)
    with pytest.raises(AssertionError, match="cut into"):
        forgetful.check(b"data: a\n\ndata: b\n\n")


def test_failing_input_is_kept_and_named(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """``make fuzz`` fails, and the smallest input that it found is there to be replayed."""
    corpus = tmp_path_factory.mktemp("corpus")
    (corpus / "brittle").mkdir()
    (corpus / "brittle" / "seed").write_bytes(b"data: a\n\n")

    def judge(data: bytes, told: bytes) -> None:
        assert b"[DONE]" not in told

    monkeypatch.setattr("tests.fuzz.target.CORPUS", corpus)
    monkeypatch.setattr("tests.fuzz.__main__.CORPUS", corpus)
    monkeypatch.setattr("tests.fuzz.__main__.TARGETS", {"brittle": Target("brittle", b"".join, judge)})
    assert main(["--seconds", "20", "--seed", "1"]) == 1
    [found] = (corpus / "brittle").glob("found-*")
    assert b"[DONE]" in found.read_bytes()
    assert found.name in capsys.readouterr().out
