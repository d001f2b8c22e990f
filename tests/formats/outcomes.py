"""The outcomes of the recorded exchanges: fixtures/<format>/outcomes.tsv."""

from __future__ import annotations

import csv
from dataclasses import dataclass

from tests.formats.support import FIXTURES


@dataclass(frozen=True)
class Outcome:
    """A line of a table, read from the recordings.

    ``outcome`` is an Ending, or a word for why there is none. The facts are those of the recorded reply, even
    if its request is refused here. ``path`` is set where a table has several routes.
    """

    name: str
    status: str
    outcome: str
    tokens: str
    finish_reasons: str
    prompt_tokens: str
    error_status: str
    path: str = ""

    @property
    def facts(self) -> tuple[int, list[str], int | None, int | None]:
        return (
            int(self.tokens),
            self.finish_reasons.replace("-", "").split(),
            _number(self.prompt_tokens),
            _number(self.error_status),
        )


def _number(text: str) -> int | None:
    return None if text == "-" else int(text)


def rows(format: str) -> list[Outcome]:
    """Return the lines of the table."""
    with (FIXTURES / format / "outcomes.tsv").open(encoding="utf-8", newline="") as file:
        return [Outcome(**row) for row in csv.DictReader(file, delimiter="\t")]
