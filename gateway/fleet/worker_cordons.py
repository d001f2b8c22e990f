"""The cordons of one worker.

Owns: who cordoned it and why, and which weights were allowed. Must never enter: what follows for its state
(Fleet's), stores, other workers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gateway.fleet.states import CordonSource

#: ``WorkerCordons.allowed_weights`` of a worker that was not uncordoned with too old weights.
NO_WEIGHTS = object()


class WorkerCordons(Collection[CordonSource]):
    """Who cordoned a worker; ``reasons`` says why. Empty: it is not cordoned."""

    __slots__ = ("allowed_weights", "reasons")

    def __init__(self) -> None:
        self.reasons: dict[CordonSource, str] = {}
        #: The weight version at which it was uncordoned although that is too low; None: it reports none.
        self.allowed_weights: object = NO_WEIGHTS

    def __contains__(self, source: object) -> bool:
        return source in self.reasons

    def __iter__(self) -> Iterator[CordonSource]:
        return iter(self.reasons)

    def __len__(self) -> int:
        return len(self.reasons)

    @property
    def why(self) -> str:
        """All reasons."""
        return "; ".join(self.reasons.values())
