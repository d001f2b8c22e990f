"""The hub, without processes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.prefork.frames import Frame, Verb
from gateway.prefork.hub import ANSWER_TIMEOUTS, Hub


def _merge(before: bytes | None, counts: bytes) -> bytes:
    return (before + b"+" if before else b"") + counts


class Play:
    """A hub, and the frames it sent. Final counts are merged with a plus sign."""

    def __init__(self, *processes: int) -> None:
        self.sent: list[tuple[int, Frame]] = []
        self.unreachable: set[int] = set()
        self.hub = Hub(len(processes), self._send, _merge)
        for process in processes:
            self.hub.process_started(process, replacement=False)
            self.receive(process, Verb.SERVING)
        self.sent.clear()

    def _send(self, process: int, frame: Frame) -> bool:
        if process in self.unreachable:
            return False
        self.sent.append((process, frame))
        return True

    def receive(
        self, process: int, verb: Verb, body: bytes = b"null", number: int = 0, at: float = 0.0
    ) -> None:
        self.hub.on_frame(process, Frame(verb, number, body), at)

    def questions(self) -> Sequence[tuple[int, Frame]]:
        """Take the questions that were sent."""
        kinds = (Verb.METRICS, Verb.LOADS, Verb.ABORT)
        return [sent for sent in self._taken() if sent[1].verb in kinds]

    def answers(self) -> list[tuple[int, int, bytes]]:
        """Take (asker, number, body) of the answers that were sent."""
        return [(to, frame.number, frame.body) for to, frame in self._taken() if frame.verb is Verb.ANSWERS]

    def state(self) -> Any:
        """Take the latest state, which must have been sent to all processes alike."""
        states = {process: frame.body for process, frame in self._taken() if frame.verb is Verb.STATE}
        assert len(set(states.values())) == 1
        return json.loads(next(iter(states.values())))

    def _taken(self) -> list[tuple[int, Frame]]:
        sent, self.sent = self.sent, []
        return sent


def test_question_goes_to_all_others_and_their_answers_return_together() -> None:
    play = Play(1, 2, 3)
    play.receive(1, Verb.ABORT, b'"x"', 7)
    questions = play.questions()
    assert [(process, frame.body) for process, frame in questions] == [(2, b'"x"'), (3, b'"x"')]
    play.receive(2, Verb.ANSWER, b'"two"', questions[0][1].number)
    assert not play.answers()
    play.receive(3, Verb.ANSWER, b'"three"', questions[1][1].number)
    assert play.answers() == [(1, 7, b'{"answers":["two","three"],"missing":0}')]
    assert play.hub.next_deadline is None


def test_late_answer_is_reported_as_missing_and_then_ignored() -> None:
    play = Play(1, 2)
    play.receive(1, Verb.ABORT, number=7, at=100.0)
    ((_, question),) = play.questions()
    assert play.hub.next_deadline == 100.0 + ANSWER_TIMEOUTS[Verb.ABORT]
    play.hub.expire(100.0 + ANSWER_TIMEOUTS[Verb.ABORT] - 0.01)
    assert not play.answers()
    play.hub.expire(100.0 + ANSWER_TIMEOUTS[Verb.ABORT])
    assert play.answers() == [(1, 7, b'{"answers":[],"missing":1}')]
    play.receive(2, Verb.ANSWER, b'"late"', question.number)
    assert not play.answers()


@pytest.mark.parametrize("verb", [Verb.ALL_CORDONS, Verb.ALL_FINDINGS])
def test_new_process_gets_the_answer_of_one_that_was_stuck_for_seconds(verb: Verb) -> None:
    play = Play(1)
    play.hub.process_started(2, replacement=True)
    play.sent.clear()
    play.receive(2, verb, number=7, at=100.0)
    ((_, question),) = play.sent
    play.sent.clear()
    play.hub.expire(104.0)
    play.receive(1, Verb.ANSWER, b'"all"', question.number)
    assert play.answers() == [(2, 7, b'{"answers":["all"],"missing":0}')]


def test_process_that_cannot_be_asked_is_missing_and_one_that_does_not_serve_is_not() -> None:
    """One that exits during a question is not awaited."""
    play = Play(1, 2, 3)
    play.unreachable.add(2)
    play.hub.process_started(4, replacement=True)
    play.receive(1, Verb.LOADS, number=7)
    assert not play.answers()
    play.hub.process_ended(3)
    assert play.answers() == [(1, 7, b'{"answers":[],"missing":1}')]


def test_question_of_a_process_that_exits_is_dropped() -> None:
    play = Play(1, 2)
    play.receive(1, Verb.LOADS, number=7)
    ((_, question),) = play.questions()
    play.hub.process_ended(1)
    play.receive(2, Verb.ANSWER, b"{}", question.number)
    play.hub.expire(1e9)
    assert not play.answers()


def test_scrape_has_the_latest_counts_of_all_others_and_of_those_that_exited() -> None:
    play = Play(1, 2, 3, 4)
    for process in (2, 3, 4):
        play.receive(process, Verb.COUNTS, b'"old%d"' % process)
    play.hub.process_ended(4)
    play.receive(1, Verb.METRICS, b'"one"', 7)
    questions = dict(play.questions())
    play.receive(2, Verb.ANSWER, b'"new2"', questions[2].number)
    play.hub.expire(1e9)
    assert play.answers() == [(1, 7, b'{"answers":["new2","old3","old4"],"missing":1}')]


def test_counts_that_a_scrape_has_shown_are_never_lost() -> None:
    """The asker's own counts reach the hub before anybody sees them, and are kept when it exits."""
    play = Play(1, 2, 3)
    play.receive(1, Verb.METRICS, b'"one"', 7)
    play.hub.process_ended(1)
    play.questions()
    play.receive(2, Verb.METRICS, b'"two"', 8)
    play.hub.expire(1e9)
    assert play.answers() == [(2, 8, b'{"answers":["one"],"missing":1}')]
    play.hub.process_ended(2)
    play.receive(3, Verb.METRICS, b'"three"', 9)
    assert play.answers() == [(3, 9, b'{"answers":["one"+"two"],"missing":0}')]


def test_gateway_is_settled_once_all_processes_serve_and_stays_so() -> None:
    play = Play(1)
    hub = Hub(2, play._send, lambda before, counts: counts)
    hub.process_started(1, replacement=False)
    hub.process_started(2, replacement=False)
    hub.on_frame(1, Frame(Verb.SERVING), 0.0)
    state = {"wanted": 2, "serving": 1, "settled": False, "draining": False, "restarts": 0, "usable": False}
    assert play.state() == state
    hub.on_frame(2, Frame(Verb.SERVING), 0.0)
    assert play.state()["settled"]
    hub.process_ended(1)
    hub.process_started(3, replacement=True)
    assert play.state() == {**state, "settled": True, "restarts": 1}


def test_hub_is_idle_when_it_drains_and_no_process_has_an_exchange() -> None:
    play = Play(1, 2)
    assert not play.hub.idle
    play.hub.drain()
    assert play.state()["draining"]
    play.receive(1, Verb.RUNNING, b"0")
    play.receive(2, Verb.RUNNING, b"1")
    assert not play.hub.idle
    play.receive(2, Verb.RUNNING, b"0")
    assert play.hub.idle
    play.hub.end()
    assert [frame.verb for _, frame in play.sent[-2:]] == [Verb.END, Verb.END]


@pytest.mark.parametrize("verb", [Verb.CORDONS, Verb.FINDINGS])
def test_what_all_have_to_know_is_sent_to_a_process_that_does_not_serve_yet_but_not_awaited(
    verb: Verb,
) -> None:
    """It has to know them when it begins to serve."""
    play = Play(1, 2)
    play.hub.process_started(3, replacement=True)
    play.sent.clear()
    play.receive(1, verb, b'"m"', 7)
    sent = play.sent[:]
    assert [(process, frame.body) for process, frame in sent] == [(2, b'"m"'), (3, b'"m"')]
    play.sent.clear()
    play.receive(2, Verb.ANSWER, b"null", sent[0][1].number)
    assert play.answers() == [(1, 7, b'{"answers":[null],"missing":0}')]


def test_gateway_is_usable_once_each_process_that_serves_has_a_worker() -> None:
    """A process that does not accept connections yet does not count."""
    play = Play(1, 2)
    play.receive(1, Verb.USABLE, b"true")
    assert not play.state()["usable"]
    play.receive(2, Verb.USABLE, b"true")
    assert play.state()["usable"]
    play.hub.process_ended(1)
    play.hub.process_started(3, replacement=True)
    assert play.state()["usable"]
    play.receive(3, Verb.SERVING)
    assert not play.state()["usable"]
    play.receive(3, Verb.USABLE, b"true")
    play.receive(2, Verb.USABLE, b"false")
    assert not play.state()["usable"]
