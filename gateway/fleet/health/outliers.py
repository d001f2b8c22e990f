"""Outlier detection: set a worker aside whose replies fail far more often than those of the others.

Owns: how long a failed reply keeps its place, which worker is an outlier, and the pauses and trial requests
of one that is set aside. Must never enter: HTTP, a dialect, probes.

The rules:

1. A failed reply keeps its place for as long as a good reply would have taken: a policy that prefers the
   worker with the fewest requests would otherwise prefer the one that fails fastest.
2. A worker is an outlier if it had MIN_REPLIES replies and the share of failed ones among its last ones is
   far above that of the other workers with its models, taken together. So no worker is one when all fail
   alike.
3. An outlier is ejected: busy for a pause that doubles each time, up to LONGEST_PAUSE. A worker whose reply
   broke off is ejected at once, as suspect. An ejected worker still serves if no other worker is ready.
4. After its pause it is on trial: it gets one request at a time until one of them has a good reply.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection
from math import sqrt
from statistics import fmean

from gateway.fleet.registry import Fleet
from gateway.fleet.replies import GOOD, ReplyOutcome
from gateway.fleet.states import WorkerEvent, WorkerState
from gateway.fleet.worker import NEVER, Worker

#: Replies that a worker, and the others together, must have had before it can be an outlier.
MIN_REPLIES = 5
#: How far its share of failed replies must be above that of the others, at least, and in standard deviations
#: of the share of a worker that is like the others.
MARGIN, MARGIN_DEVIATIONS = 0.3, 3.0
#: Seconds of the first pause: of an outlier, and of a worker whose reply broke off.
OUTLIER_PAUSE, BROKEN_PAUSE = 1.0, 0.5
LONGEST_PAUSE = 30.0
#: Seconds of a good reply of a fleet that has had none yet.
UNKNOWN_DURATION = 1.0
#: A failed reply does not keep its place for more seconds than this, whatever good ones take.
LONGEST_HOLD = 300.0
#: Failed replies that may keep a place at one worker at once.
MOST_HELD = 1000
#: Tokens of a trial reply that are at most so many seconds old count as a good reply.
TRIAL_TOKENS_WITHIN = 5.0
#: Seconds between two comparisons of one worker with the others.
COMPARE_EVERY = 0.25

_FAILURES = frozenset({ReplyOutcome.FAILED, ReplyOutcome.BROKEN})


class OutlierDetector:
    """Judges the workers of ``fleet`` by their replies.

    ``on_change`` is called with a worker that should be probed soon.
    """

    def __init__(self, fleet: Fleet, on_change: Callable[[Worker], None]) -> None:
        self._fleet = fleet
        self._on_change = on_change

    def observe(
        self,
        worker: Worker,
        incarnation: object,
        outcome: ReplyOutcome,
        seconds: float,
        key: str | None = None,
    ) -> None:
        """Take in how a request ended that ``worker``, at that time ``incarnation``, had for ``seconds``.

        Failures in a row of requests with the same routing ``key`` count as one: all of them come here, and
        another worker might fail them, too.
        """
        if worker.incarnation is not incarnation:
            return  # another process serves its URL now
        vitals, now = worker.vitals, time.monotonic()
        if outcome is GOOD:
            vitals.replies.add_good(seconds)
            vitals.last_reply_at = now
            vitals.refusals = 0
            if vitals.on_trial:
                self._pass(worker)
            return
        if outcome in _FAILURES:
            if key is None or key != vitals.last_failed_key:
                vitals.replies.add_failed()
            vitals.last_failed_key = key
        if outcome is not ReplyOutcome.UNKNOWN:
            self._keep_place(worker, seconds)
        self._judge(worker, outcome, now)

    def check_trial(self, worker: Worker, now: float) -> None:
        """End a trial whose reply produces tokens, and one whose request has ended without a reply."""
        if worker.vitals.last_reply_at > now - TRIAL_TOKENS_WITHIN and worker.in_flight:
            self._pass(worker)
        elif not worker.in_flight:
            worker.vitals.ejected_until = now

    def _judge(self, worker: Worker, outcome: ReplyOutcome, now: float) -> None:
        vitals = worker.vitals
        in_trial = worker.in_trial
        if outcome is ReplyOutcome.BROKEN:
            if in_trial or worker.state is WorkerState.READY:
                self._eject(worker, BROKEN_PAUSE, now)
            if worker.state not in (WorkerState.JOINING, WorkerState.DEAD):
                self._fleet.apply_event(worker, WorkerEvent.DOUBT, "a reply of it was broken")
            self._on_change(worker)
        elif outcome is ReplyOutcome.FAILED and (
            in_trial or (worker.state is WorkerState.READY and self._is_outlier(worker, now))
        ):
            replies = vitals.replies
            self._eject(worker, OUTLIER_PAUSE, now)
            self._fleet.apply_event(
                worker, WorkerEvent.FULL, f"{replies.failed} of its last {replies.count} replies failed"
            )
            self._on_change(worker)
        elif in_trial:
            vitals.ejected_until = now  # the trial showed nothing; the next request is another one
            self._on_change(worker)

    def _eject(self, worker: Worker, first_pause: float, now: float) -> None:
        vitals = worker.vitals
        pause = min(first_pause * 2**vitals.ejections, LONGEST_PAUSE)
        vitals.ejections = min(vitals.ejections + 1, 16)  # no pause needs more doublings
        vitals.ejected_until = now + pause
        vitals.on_trial = True

    def _pass(self, worker: Worker) -> None:
        vitals = worker.vitals
        vitals.on_trial = False
        vitals.ejections, vitals.ejected_until = 0, NEVER
        vitals.replies.clear()
        self._on_change(worker)

    def _keep_place(self, worker: Worker, seconds: float) -> None:
        vitals = worker.vitals
        remaining = min(self._duration_of_good(worker), LONGEST_HOLD) - seconds
        if remaining > 0 and vitals.held_places < MOST_HELD:
            vitals.held_places += 1
            worker.occupancy += 1
            asyncio.get_running_loop().call_later(remaining, _give_up_place, worker, worker.incarnation)

    def _duration_of_good(self, worker: Worker) -> float:
        if own := worker.vitals.replies.mean_seconds:
            return own
        known = [mean for each in self._peers(worker) if (mean := each.vitals.replies.mean_seconds)]
        return fmean(known) if known else UNKNOWN_DURATION

    def _is_outlier(self, worker: Worker, now: float) -> bool:
        vitals = worker.vitals
        own = vitals.replies
        if own.count < MIN_REPLIES or now < vitals.compared_at + COMPARE_EVERY:
            return False
        vitals.compared_at = now
        others = [each.vitals.replies for each in self._peers(worker)]
        replies = sum(each.count for each in others)
        if replies < MIN_REPLIES:
            return False
        share = sum(each.failed for each in others) / replies
        deviation = sqrt(share * (1 - share) / own.count)
        return own.failed / own.count >= share + max(MARGIN, MARGIN_DEVIATIONS * deviation)

    def _peers(self, worker: Worker) -> Collection[Worker]:
        """Return the other members that serve a model of ``worker``; their replies can be compared."""
        served = _served(worker)
        return [each for each in self._fleet.workers if each is not worker and served & _served(each)]


def _served(worker: Worker) -> frozenset[tuple[str, str | None]]:
    """Return what ``worker`` serves, as (capability, model); the model is None where it reports none."""
    return frozenset(
        (info.capability, model)
        for info in worker.infos.values()
        if info.usable
        for model in (info.models or (worker.record.model,))
    )


def _give_up_place(worker: Worker, incarnation: object) -> None:
    if worker.incarnation is incarnation:
        worker.vitals.held_places -= 1
        worker.occupancy -= 1
