"""The report of a run as text and as JSON.

Owns: the table. Must never enter: a judgement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from tests.chaos.run.checker import KINDS, Breach, Case, notices
from tests.chaos.run.plan import Fault
from tests.chaos.run.records import Books

#: The number of broken promises that are listed, and of requests whose complete history is shown.
_LISTED, _MOST = 40, 12


def summary(seed: str, books: Books, faults: Sequence[Fault], breaches: Sequence[Breach]) -> dict[str, Any]:
    """Return all figures of a run."""
    kinds = Counter(breach.kind for breach in breaches)
    return {
        "seed": seed,
        "faults": dict(sorted(Counter(fault.what for fault in faults).items())),
        "requests": len(books.records),
        "did": dict(sorted(Counter(record.what for record in books.records).items())),
        "outcomes": dict(sorted(Counter(record.outcome.value for record in books.records).items())),
        "generations": sum(milestone.mark == "arrived" for milestone in books.milestones),
        "aborts": len(books.aborts),
        "worker_lives": len(books.lives),
        "memory_mib": [_mib(books.end.memory_before), _mib(books.end.memory_after)],
        "notice_ms": {name: round(1000 * seconds) for name, seconds in _notice(books).items()},
        "breaches": {kind: kinds[kind] for kind in KINDS},
    }


def text(found: dict[str, Any]) -> str:
    """Return the figures as text."""
    return "\n".join(f"{name:<18}{value!s:>9}  {more}".rstrip() for name, value, more in _rows(found))


def markdown(found: dict[str, Any]) -> str:
    """Return the figures as Markdown for the page."""
    rows = [f"| {name} | {value} | {more} |" for name, value, more in _rows(found)]
    return "\n".join(["| | | |", "| --- | ---: | --- |", *rows])


def _rows(found: dict[str, Any]) -> list[tuple[str, object, str]]:
    before, after = found["memory_mib"]
    notice = found["notice_ms"]
    return [
        ("faults injected", sum(found["faults"].values()), _list(found["faults"])),
        ("requests", found["requests"], _list(found["did"])),
        ("outcomes", sum(found["outcomes"].values()), _list(found["outcomes"])),
        ("generations", found["generations"], f"by {found['worker_lives']} processes of workers"),
        ("aborts at workers", found["aborts"], ""),
        ("a leaver noticed", f"{notice['p50']} ms", f"p50; p99 {notice['p99']} ms, by workers not frozen"),
        ("gateway's memory", f"{after} MiB", f"{before} MiB after the warm-up"),
        *((kind, found["breaches"][kind], "") for kind in KINDS),
    ]


def details(case: Case, breaches: Sequence[Breach]) -> str:
    """Return each broken promise, and the history of the first requests concerned."""
    lines = [f"{breach.kind}: {breach.marker or '-'}: {breach.text}" for breach in breaches[:_LISTED]]
    if len(breaches) > _LISTED:
        lines.append(f"and {len(breaches) - _LISTED} more")
    for marker in list(dict.fromkeys(breach.marker for breach in breaches if breach.marker))[:_MOST]:
        lines += ["", f"history of {marker}:", *case.history(marker)]
    return "\n".join(lines)


def _notice(books: Books) -> dict[str, float]:
    """Return the percentiles of the seconds from a client's disconnect to the end at its worker."""
    times = sorted(notices(Case(books))) or [0.0]
    return {"p50": times[len(times) // 2], "p99": times[len(times) * 99 // 100]}


def _mib(size: int) -> float:
    return round(size / (1 << 20), 1)


def _list(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
