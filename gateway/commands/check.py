"""``tito-gateway check``: a table of what the gateway finds at the given URLs.

Owns: probing each worker once and printing the result. Must never enter: a dialect, serving.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence

from gateway.fleet.health.probe import PROBE_TIMEOUT, NotAsked, Unreachable, interview
from gateway.fleet.registry import Fleet
from gateway.fleet.worker import Worker
from gateway.formats.registry import load_formats
from gateway.formats.worker_contract import WorkerInfo
from gateway.routing.policy import LeastInFlight
from gateway.settings import Settings
from gateway.upstream.address import Address
from gateway.upstream.connector import Connector
from gateway.wiring.cards import card_builder
from gateway.wiring.tls import worker_tls

Row = tuple[str, ...]

HEADINGS: Row = (
    "WORKER",
    "FORMAT",
    "ENGINE",
    "VERSION",
    "MODEL",
    "CONTEXT",
    "STREAMING",
    "CAPABILITY",
    "USABLE",
    "PROBLEM",
)
_USABLE = HEADINGS.index("USABLE")


def check(settings: Settings) -> tuple[str, bool]:
    """Probe every worker of ``settings``.

    Return a table with the card of each worker below it, and True if a worker is usable.
    """
    rows, cards = asyncio.run(_probe_all(settings))
    text = "\n".join([table([HEADINGS, *rows]), *cards])
    return text, any(row[_USABLE] == "yes" for row in rows)


async def _probe_all(settings: Settings) -> tuple[Sequence[Row], Sequence[str]]:
    formats = list(load_formats().values())
    tls = worker_tls(settings)
    fleet = Fleet(
        LeastInFlight(random.Random()),
        Connector(PROBE_TIMEOUT, None if tls is None else tls.context),
        cards=card_builder(settings, formats),
    )

    async def probe(url: str, only: str | None) -> Sequence[Row]:
        worker = Worker(Address.parse(url), declared_format=only, authorization=settings.worker_authorization)
        fleet.add(worker)
        try:
            found = await interview(worker, formats)
        except (NotAsked, Unreachable) as error:
            return [_failed_row(url, str(error))]
        if found is None:
            return [_failed_row(url, "it replied to no probe")]
        fleet.describe(worker, found.infos)
        rows = [_row(url, name, info) for name, info in found.infos.items()]
        names = only or ", ".join(format.name for format in formats)
        return rows or [_failed_row(url, f"it speaks none of: {names}")]

    found = await asyncio.gather(*(probe(entry.url, entry.format) for entry in settings.workers))
    rows = [_with_same_server(row, fleet.at(row[0])) for rows in found for row in rows]
    cards = [
        f"card of {worker.url}: {json.dumps(worker.card.document)}"
        for worker in fleet.workers
        if worker.infos
    ]
    return rows, cards


def _with_same_server(row: Row, worker: Worker | None) -> Row:
    if worker is None or worker.same_server_as is None:
        return row
    problem = f"it is the same server as {worker.same_server_as.url}"
    return (*row[:-1], problem if row[-1] == "-" else f"{row[-1]}; {problem}")


def _failed_row(url: str, problem: str) -> Row:
    return (url, *["-"] * (_USABLE - 1), "no", problem)


def _row(url: str, name: str, info: WorkerInfo) -> Row:
    return (
        url,
        name,
        info.engine,
        info.version or "-",
        ",".join(info.models) or "-",
        str(info.card.context_length or "-"),
        info.stream_mode or "-",
        info.capability,
        "yes" if info.usable else "no",
        info.reason or "-",
    )


def table(rows: Sequence[Row]) -> str:
    """Return ``rows`` as columns, two spaces apart. Unprintable characters of a worker become ``?``."""
    shown = [tuple("".join(c if c.isprintable() else "?" for c in cell) for cell in row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in shown)
