"""What became of every recorded exchange: fixtures/sglang/outcomes.tsv, the one table of outcomes."""

from __future__ import annotations

import csv
from dataclasses import dataclass

from tests.formats.support import FIXTURES


@dataclass(frozen=True)
class Outcome:
    """A line of the table, read off the recordings.

    ``outcome`` is an Ending, that of the opaque reader where the exchange is on a route of no format here. Or
    why there is none: ``refused`` by the gateway before the engine sees it, ``unanswered`` as the engine died
    or the client left before a status, ``another method`` than the route has. The facts are those of the
    recorded reply, be its request refused here.
    """

    name: str
    path: str
    status: str
    outcome: str
    tokens: str
    finish_reasons: str
    prompt_tokens: str
    error_status: str

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


def rows() -> list[Outcome]:
    """Line by line, as the table has them."""
    with (FIXTURES / "sglang" / "outcomes.tsv").open(encoding="utf-8", newline="") as file:
        return [Outcome(**row) for row in csv.DictReader(file, delimiter="\t")]


OUTCOMES = {row.name: row for row in rows()}
#: Recorded bodies that the gateway refuses itself; the engine refused them too, answered 500, or died.
REFUSED = {name for name, row in OUTCOMES.items() if row.outcome == "refused"}
#: Replies with a 200 of the generate route that a client of the gateway can get.
SUCCEEDED = sorted(
    name
    for name, row in OUTCOMES.items()
    if (row.path, row.status) == ("/generate", "200") and name not in REFUSED
)
