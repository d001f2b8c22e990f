"""What the supervisor knows and passes on, played through without a process."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gateway.prefork.frames import Frame, Verb
from gateway.prefork.hub import PATIENCE, Hub


class Play:
    """A hub, and what it sent to whom. Last words of the dead are joined by a plus."""

    def __init__(self, *processes: int) -> None:
        self.sent: list[tuple[int, Frame]] = []
        self.deaf: set[int] = set()
        self.hub = Hub(len(processes), self._send, lambda gone, last: (gone + b"+" if gone else b"") + last)
        for process in processes:
            self.hub.joined(process, again=False)
            self.say(process, Verb.SERVING)
        self.sent.clear()

    def _send(self, process: int, frame: Frame) -> bool:
        if process in self.deaf:
            return False
        self.sent.append((process, frame))
        return True

    def say(self, process: int, verb: Verb, body: bytes = b"null", number: int = 0, at: float = 0.0) -> None:
        self.hub.heard(process, Frame(verb, number, body), at)

    def asked(self) -> Sequence[tuple[int, Frame]]:
        """The questions that are on their way, taken off it."""
        kinds = (Verb.METRICS, Verb.LOADS, Verb.ABORT)
        return [sent for sent in self._taken() if sent[1].verb in kinds]

    def answers(self) -> list[tuple[int, int, bytes]]:
        """(asker, number, body) of the answers that were sent."""
        return [(to, frame.number, frame.body) for to, frame in self._taken() if frame.verb is Verb.ANSWERS]

    def state(self) -> Any:
        """The latest that was told, and to all alive alike."""
        told = {process: frame.body for process, frame in self._taken() if frame.verb is Verb.STATE}
        assert len(set(told.values())) == 1
        return json.loads(next(iter(told.values())))

    def _taken(self) -> list[tuple[int, Frame]]:
        sent, self.sent = self.sent, []
        return sent


def test_question_goes_to_all_others_and_their_answers_come_back_together() -> None:
    play = Play(1, 2, 3)
    play.say(1, Verb.ABORT, b'"x"', 7)
    questions = play.asked()
    assert [(process, frame.body) for process, frame in questions] == [(2, b'"x"'), (3, b'"x"')]
    play.say(2, Verb.ANSWER, b'"two"', questions[0][1].number)
    assert not play.answers()
    play.say(3, Verb.ANSWER, b'"three"', questions[1][1].number)
    assert play.answers() == [(1, 7, b'{"answers":["two","three"],"missing":0}')]
    assert play.hub.due is None


def test_late_answer_is_missed_and_then_ignored() -> None:
    play = Play(1, 2)
    play.say(1, Verb.ABORT, number=7, at=100.0)
    ((_, question),) = play.asked()
    assert play.hub.due == 100.0 + PATIENCE[Verb.ABORT]
    play.hub.expire(100.0 + PATIENCE[Verb.ABORT] - 0.01)
    assert not play.answers()
    play.hub.expire(100.0 + PATIENCE[Verb.ABORT])
    assert play.answers() == [(1, 7, b'{"answers":[],"missing":1}')]
    play.say(2, Verb.ANSWER, b'"late"', question.number)
    assert not play.answers()


def test_process_that_cannot_be_asked_is_missing() -> None:
    play = Play(1, 2)
    play.deaf.add(2)
    play.say(1, Verb.ABORT, number=7)
    assert play.answers() == [(1, 7, b'{"answers":[],"missing":1}')]


def test_process_that_dies_under_a_question_is_not_waited_for() -> None:
    play = Play(1, 2)
    play.say(1, Verb.LOADS, number=7)
    play.hub.left(2)
    assert play.answers() == [(1, 7, b'{"answers":[],"missing":0}')]


def test_asker_that_dies_takes_its_question_along() -> None:
    play = Play(1, 2)
    play.say(1, Verb.LOADS, number=7)
    ((_, question),) = play.asked()
    play.hub.left(1)
    play.say(2, Verb.ANSWER, b"{}", question.number)
    play.hub.expire(1e9)
    assert not play.answers()


def test_scrape_has_the_latest_of_all_others_and_of_the_dead() -> None:
    play = Play(1, 2, 3, 4)
    for process in (2, 3, 4):
        play.say(process, Verb.COUNTED, b'"old%d"' % process)
    play.hub.left(4)
    play.say(1, Verb.METRICS, b'"one"', 7)
    questions = dict(play.asked())
    play.say(2, Verb.ANSWER, b'"new2"', questions[2].number)
    play.hub.expire(1e9)
    assert play.answers() == [(1, 7, b'{"answers":["new2","old3","old4"],"missing":1}')]


def test_what_a_scrape_has_shown_is_never_unsaid() -> None:
    """The asker's own numbers are the hub's before anybody sees them, and outlive it."""
    play = Play(1, 2, 3)
    play.say(1, Verb.METRICS, b'"one"', 7)
    play.hub.left(1)
    play.asked()
    play.say(2, Verb.METRICS, b'"two"', 8)
    play.hub.expire(1e9)
    assert play.answers() == [(2, 8, b'{"answers":["one"],"missing":1}')]
    play.hub.left(2)
    play.say(3, Verb.METRICS, b'"three"', 9)
    assert play.answers() == [(3, 9, b'{"answers":["one"+"two"],"missing":0}')]


def test_gateway_is_settled_once_all_serve_and_stays_so() -> None:
    play = Play(1)
    hub = Hub(2, play._send, lambda gone, last: last)
    hub.joined(1, again=False)
    hub.joined(2, again=False)
    hub.heard(1, Frame(Verb.SERVING), 0.0)
    state = {"wanted": 2, "serving": 1, "settled": False, "draining": False, "restarts": 0, "usable": False}
    assert play.state() == state
    hub.heard(2, Frame(Verb.SERVING), 0.0)
    assert play.state()["settled"]
    hub.left(1)
    hub.joined(3, again=True)
    assert play.state() == {**state, "settled": True, "restarts": 1}


def test_process_that_does_not_serve_yet_is_not_asked() -> None:
    play = Play(1)
    play.hub.joined(2, again=True)
    play.say(1, Verb.LOADS, number=7)
    assert play.answers() == [(1, 7, b'{"answers":[],"missing":0}')]


def test_hub_is_idle_when_it_drains_and_nobody_has_an_exchange() -> None:
    play = Play(1, 2)
    assert not play.hub.idle
    play.hub.drain()
    assert play.state()["draining"]
    play.say(1, Verb.OPEN, b"0")
    play.say(2, Verb.OPEN, b"1")
    assert not play.hub.idle
    play.say(2, Verb.OPEN, b"0")
    assert play.hub.idle
    play.hub.end()
    assert [frame.verb for _, frame in play.sent[-2:]] == [Verb.END, Verb.END]


def test_marks_are_told_to_a_process_that_does_not_serve_yet_but_not_waited_for() -> None:
    """It will serve by them."""
    play = Play(1, 2)
    play.hub.joined(3, again=True)
    play.sent.clear()
    play.say(1, Verb.MARKS, b'"m"', 7)
    told = play.sent[:]
    assert [(process, frame.body) for process, frame in told] == [(2, b'"m"'), (3, b'"m"')]
    play.sent.clear()
    play.say(2, Verb.ANSWER, b"null", told[0][1].number)
    assert play.answers() == [(1, 7, b'{"answers":[null],"missing":0}')]


def test_gateway_is_usable_once_each_that_serves_has_a_worker() -> None:
    """One that does not accept connections yet takes nothing away."""
    play = Play(1, 2)
    play.say(1, Verb.USABLE, b"true")
    assert not play.state()["usable"]
    play.say(2, Verb.USABLE, b"true")
    assert play.state()["usable"]
    play.hub.left(1)
    play.hub.joined(3, again=True)
    assert play.state()["usable"]
    play.say(3, Verb.SERVING)
    assert not play.state()["usable"]
    play.say(3, Verb.USABLE, b"true")
    play.say(2, Verb.USABLE, b"false")
    assert not play.state()["usable"]
