"""In which members the cards of workers that serve one model differ.

Owns: the comparison, and its warning. Must never enter: I/O, what follows from it for a request.

Requests of a model go to any of its workers, so that clients see now one card and now another. Dynamo takes
such workers for two sets and admits neither.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from operator import attrgetter

from gateway.fleet.roster import models_of
from gateway.fleet.worker import Worker

log = logging.getLogger(__name__)

#: The members that are compared. A worker agrees with all others about one that nobody mentions for it.
COMPARED = ("context_length", "tool_call_parser", "reasoning_parser", "structural_tag")
_compared = attrgetter(*COMPARED)

#: A capability, and the base model that is served as that.
_Served = tuple[str, str]
_Card = tuple[object, ...]


class _Cohort:
    """The workers that serve one model as one capability, and the members in which their cards differ."""

    def __init__(self) -> None:
        self.cards: dict[Worker, _Card] = {}
        self.differing: Sequence[str] = ()
        #: How many workers have a card: most often all have the same.
        self._counts: Counter[_Card] = Counter()

    def put(self, worker: Worker, card: _Card | None) -> None:
        """Replace the card of ``worker``; None: it left."""
        if (before := self.cards.pop(worker, None)) is not None:
            self._counts[before] -= 1
            if not self._counts[before]:
                del self._counts[before]
        if card is not None:
            self.cards[worker] = card
            self._counts[card] += 1

    def compare(self) -> Sequence[str]:
        """Return the members in which the cards differ."""
        if len(self._counts) < 2:
            return ()
        columns = zip(COMPARED, zip(*self._counts, strict=True), strict=True)
        return [name for name, column in columns if len({*column} - {None}) > 1]


class CardConflicts:
    """Keeps ``Worker.card_conflicts`` of the workers of one fleet up to date."""

    def __init__(self) -> None:
        self._cohorts: defaultdict[_Served, _Cohort] = defaultdict(_Cohort)
        self._served_by: dict[Worker, frozenset[_Served]] = {}

    def note(self, worker: Worker) -> None:
        """Compare the card of ``worker`` as it is now."""
        before = self._served_by.get(worker, frozenset())
        self._served_by[worker] = now = frozenset(_served_by(worker))
        for served in before | now:
            self._put(served, worker, _compared(worker.card.values) if served in now else None)
        self._show(worker)

    def forget(self, worker: Worker) -> None:
        """Forget a worker that is no member any more."""
        for served in self._served_by.pop(worker, ()):
            self._put(served, worker, None)
        self._show(worker)

    def _put(self, served: _Served, worker: Worker, card: _Card | None) -> None:
        cohort = self._cohorts[served]
        cohort.put(worker, card)
        known, cohort.differing = cohort.differing, cohort.compare()
        for name in cohort.differing:
            if name not in known:
                _warn(served, name, worker, cohort.cards)
        if cohort.differing != known:
            for each in cohort.cards:
                self._show(each)
        if not cohort.cards:
            del self._cohorts[served]

    def _show(self, worker: Worker) -> None:
        cohorts = [self._cohorts[served] for served in self._served_by.get(worker, ())]
        differing = {name for cohort in cohorts for name in cohort.differing}
        worker.card_conflicts = tuple(name for name in COMPARED if name in differing)


def _warn(served: _Served, name: str, worker: Worker, cards: dict[Worker, _Card]) -> None:
    values = {each: card[COMPARED.index(name)] for each, card in cards.items()}
    other = next(each for each, value in values.items() if value not in (None, values[worker]))
    log.warning(
        "workers of the model %s have cards that differ in %s: %s for %s, %s for %s",
        served[1],
        name,
        values[worker],
        worker.url,
        values[other],
        other.url,
    )


def _served_by(worker: Worker) -> Iterator[_Served]:
    for info in worker.infos.values():
        for model in models_of(worker, info)[:1]:
            yield info.capability, model
