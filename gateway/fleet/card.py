"""The card of a worker: what all its sources say, as one record.

Owns: which source counts, where each value comes from, the version. Must never enter: what one source says
and how it says that, what a request makes of it.

A card is made anew when a source says something else, never for a request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from gateway.cards.members import write
from gateway.cards.token_budget import MOST_TOKENS, TokenBudget
from gateway.cards.values import NOTHING, CardValues
from gateway.formats.worker_contract import WorkerInfo
from gateway.stores.record import REGULAR, WorkerRecord


class CardSource(StrEnum):
    """Who says something about a worker; of several who do the first one counts."""

    #: Whoever registered it here: by the workers API, or by ``--worker``.
    REGISTRATION = "registration"
    #: Whoever wrote its record into the store.
    STORE = "store"
    ENGINE = "engine"
    #: The settings of this gateway.
    SETTING = "setting"
    #: Its format, or else the definition of the member.
    DEFAULT = "default"


#: What a member means where nobody mentions it.
DEFAULTS = CardValues(
    worker_type=REGULAR,
    data_parallel_start_rank=0,
    data_parallel_size=1,
    exclude_tools_when_tool_choice_none=True,
    enable_eagle=False,
)
_NAMES = tuple(each.name for each in fields(CardValues))
_all_of = attrgetter(*_NAMES)
#: What else an engine reports or does not, and what follows from its list of models.
_OF_OPTIONAL = ("version", "stream_mode", "launch", "model_path")
_OF_MODELS = ("models", "adapters", "model_entries", "model_cards")
_NO_DEFAULTS: Mapping[str, CardValues] = MappingProxyType({})

Layer = tuple[CardSource, CardValues]


@dataclass(frozen=True, slots=True)
class Card:
    """What is known of a worker, and by the names of ``values`` where it comes from.

    ``version`` grows with each change. ``document`` is the JSON object of the values. ``models`` has the
    cards of those of its models about which something else is known than about the worker. No request that
    has ``smallest_limit`` tokens or fewer is refused by a token budget of these cards.
    """

    values: CardValues = NOTHING
    sources: Mapping[str, CardSource] = field(default_factory=dict)
    version: int = 0
    document: Mapping[str, Any] = field(default_factory=dict, compare=False)
    models: Mapping[str, Card] = field(default_factory=dict)
    smallest_limit: int = MOST_TOKENS

    def of_model(self, model: str | None) -> Card:
        """Return the card of one model of the worker."""
        return self if model is None else self.models.get(model, self)


class CardBuilder:
    """Makes cards. ``settings`` are what the gateway's settings say of every worker, ``defaults`` what the
    formats say of theirs, by name."""

    def __init__(
        self, settings: CardValues = NOTHING, defaults: Mapping[str, CardValues] = _NO_DEFAULTS
    ) -> None:
        self._settings = settings
        self._defaults = defaults

    def build(self, before: Card, recorded: Layer, infos: Mapping[str, WorkerInfo]) -> Card:
        """Return the card of a worker, ``before`` if nothing else is known than then.

        ``recorded`` is what its record says, ``infos`` what its probes found, by format.
        """
        # Of several formats that know the worker one that it serves counts first.
        by_use = sorted(infos.items(), key=lambda item: not item[1].usable)
        # What it serves is what any of them has found.
        served = tuple(key for _, info in by_use for key in info.card.capabilities or ())
        below = [
            (CardSource.ENGINE, CardValues(capabilities=served or None)),
            *((CardSource.ENGINE, info.card) for _, info in by_use),
            (CardSource.SETTING, self._settings),
            *((CardSource.DEFAULT, self._defaults.get(name, NOTHING)) for name, _ in by_use),
            (CardSource.DEFAULT, DEFAULTS),
        ]
        version = before.version + 1
        own = {model: values for _, info in by_use for model, values in info.model_cards.items()}
        models = {
            model: _merged([recorded, (CardSource.ENGINE, values), *below], version)
            for model, values in own.items()
        }
        card = _merged([recorded, *below], version)
        smallest = min(_limit(each.values.token_budget) for each in (card, *models.values()))
        card = replace(card, models=models, smallest_limit=smallest)
        return before if _same(card, before) else card


def complete(info: WorkerInfo, known: WorkerInfo | None) -> WorkerInfo:
    """Return ``info`` with what its engine reported before, where it mentions nothing now."""
    if known is None:
        return info
    pairs = zip(_NAMES, _all_of(info.card), _all_of(known.card), strict=True)
    values = CardValues(**{name: before if now is None else now for name, now, before in pairs})
    silent = [name for name in _OF_OPTIONAL if getattr(info, name) is None]
    if not info.model_entries and known.model_entries:
        silent += _OF_MODELS
    return replace(info, card=values, **{name: getattr(known, name) for name in silent})


def recorded(record: WorkerRecord, rank: int | None) -> CardValues:
    """Return what a record says of its worker; ``rank`` is the one that its URL names."""
    values = record.card
    if record.worker_type != REGULAR:
        values = replace(values, worker_type=record.worker_type)
    if record.bootstrap_port is not None:
        values = replace(values, bootstrap_port=record.bootstrap_port)
    if rank is not None and values.data_parallel_start_rank is None:
        size = values.data_parallel_size or 1
        values = replace(values, data_parallel_start_rank=rank, data_parallel_size=size)
    return values


def _merged(layers: list[Layer], version: int) -> Card:
    found: dict[str, Any] = {}
    sources: dict[str, CardSource] = {}
    for source, values in reversed(layers):
        for name, value in zip(_NAMES, _all_of(values), strict=True):
            if value is not None:
                found[name], sources[name] = value, source
    merged = CardValues(**found)
    return Card(merged, sources, version, write(merged))


def _limit(budget: TokenBudget | None) -> int:
    return MOST_TOKENS if budget is None or not budget.strict else budget.combined_limit


def _same(card: Card, before: Card) -> bool:
    """Return True if two cards differ in nothing but their version."""
    models = {name: replace(each, version=0) for name, each in card.models.items()}
    known = {name: replace(each, version=0) for name, each in before.models.items()}
    return (card.values, card.sources, models) == (before.values, before.sources, known)
