"""Every kept input is handled correctly, however it is cut into reads. (``make fuzz`` looks for more.)"""

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
    """No exception, the same result for all cuts, and no bytes that the peer did not send."""
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


def test_usual_cuts_keep_all_bytes() -> None:
    data = b"HTTP/1.1 200 OK\r\n\r\n" * 9
    ways = usual_cuts(data)
    assert len(ways) > 2
    assert all(b"".join(pieces) == data and all(pieces) for pieces in ways)


def test_reader_whose_output_depends_on_the_cuts_is_found() -> None:
    """The check of the law can fail: this reader starts a new scanner with each read."""

    def read(pieces: Sequence[bytes]) -> list[bytes]:
        return [event for piece in pieces for event, _ in EventScanner().feed(piece)]

    forgetful = Target("forgetful", read, lambda data, result: None)
    with pytest.raises(AssertionError, match="cut into"):
        forgetful.check(b"data: a\n\ndata: b\n\n")


def test_failing_input_is_kept_and_named(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """``make fuzz`` fails and stores the smallest failing input."""
    corpus = tmp_path_factory.mktemp("corpus")
    (corpus / "brittle").mkdir()
    (corpus / "brittle" / "seed").write_bytes(b"data: a\n\n")

    def judge(data: bytes, result: bytes) -> None:
        assert b"[DONE]" not in result

    monkeypatch.setattr("tests.fuzz.target.CORPUS", corpus)
    monkeypatch.setattr("tests.fuzz.__main__.CORPUS", corpus)
    monkeypatch.setattr("tests.fuzz.__main__.TARGETS", {"brittle": Target("brittle", b"".join, judge)})
    assert main(["--seconds", "20", "--seed", "1"]) == 1
    [found] = (corpus / "brittle").glob("found-*")
    assert b"[DONE]" in found.read_bytes()
    assert found.name in capsys.readouterr().out
