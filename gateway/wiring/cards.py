"""The sources of worker cards that are known before any worker is.

Owns: what the formats and the settings mention of every worker. Must never enter: a worker, merging.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.cards.values import CardValues
from gateway.fleet.card import CardBuilder
from gateway.formats.base import AnyFormat
from gateway.settings import Settings


def card_builder(settings: Settings, formats: Iterable[AnyFormat]) -> CardBuilder:
    """Return what makes the cards of workers of ``formats``."""
    return CardBuilder(
        CardValues(structural_tag=settings.dyn_structural_tag),
        {format.name: format.card_defaults for format in formats},
    )
