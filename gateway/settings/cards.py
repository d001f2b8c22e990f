"""Settings: worker cards.

Owns: what the cards of workers say that neither their registration nor their engine says. Must never enter:
the default of a format.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator

from gateway.cards.structural_tag import StructuralTag
from gateway.settings.fields import MayStandAlone, Section, setting


def _parsed(value: object) -> object:
    return StructuralTag.parse(value) if isinstance(value, str) else value


Policy = Annotated[StructuralTag | None, BeforeValidator(_parsed), MayStandAlone("true")]


class Cards(Section):
    """Worker cards."""

    dyn_structural_tag: Policy = setting(
        "DYN_STRUCTURAL_TAG",
        None,
        "Whether the engines of workers compile grammars for tool calls: true (also without a value), false "
        "or a JSON object; unset: the default of the worker's format",
    )
