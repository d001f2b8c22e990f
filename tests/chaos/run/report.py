"""The end of a run: its figures as text, as JSON and in docs/reliability.md, and its exit code."""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.page import replace_part
from tests.chaos.run.checker import KINDS, Breach, Case, check, notices
from tests.chaos.run.plan import Fault
from tests.chaos.run.records import Books

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reliability.md"
#: The number of broken promises that are listed, and of requests whose complete history is shown.
_LISTED, _MOST = 40, 12


def parser(name: str, about: str, minutes: float) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog=f"python -m {name}", description=about)
    made.add_argument("--minutes", type=float, default=minutes, help="how long it may take, about")
    made.add_argument("--seed", default=str(random.randrange(10**6)), help="choices of an earlier run")
    made.add_argument("--json", type=Path, help="file for the figures")
    made.add_argument("--write-docs", action="store_true", help="put the figures into docs/reliability.md")
    made.add_argument("--logs", type=Path, help="new folder to keep all records and logs in")
    return made


def finish(options: argparse.Namespace, books: Books, faults: Sequence[Fault], **more: Any) -> int:
    """Check ``books`` and report them; return the exit code: 1 if a promise was broken."""
    case = Case(books)
    breaches = check(books)
    figures = summary(options.seed, case, faults, breaches)
    print("\n".join(f"{name:<18}{value!s:>9}  {note}".rstrip() for name, value, note in _rows(figures)))
    if more.get("not_tested"):
        print("!" * 100, f"no host was lost: {more['not_tested']}", "!" * 100, sep="\n")
    if options.json is not None:
        options.json.write_text(json.dumps({**figures, **more}, indent=1) + "\n")
    if options.write_docs and faults:
        rows = [f"| {name} | {value} | {note} |" for name, value, note in _rows(figures)]
        write_page("chaos", "\n".join(["| | | |", "| --- | ---: | --- |", *rows]))
    if breaches:
        print(details(case, breaches), f"again: --seed {options.seed}", sep="\n\n", file=sys.stderr)
    return 1 if breaches else 0


def write_page(part: str, content: str) -> None:
    """Put ``content`` between the markers of ``part`` on the page."""
    PAGE.write_text(replace_part(PAGE.read_text(), part, content))


def summary(seed: str, case: Case, faults: Sequence[Fault], breaches: Sequence[Breach]) -> dict[str, Any]:
    books, kinds = case.books, Counter(breach.kind for breach in breaches)
    times = sorted(notices(case)) or [0.0]
    half, most = (round(1000 * times[len(times) * share // 100]) for share in (50, 99))
    return {
        "seed": seed,
        "faults": dict(sorted(Counter(fault.what for fault in faults).items())),
        "requests": len(books.records),
        "did": dict(sorted(Counter(record.what for record in books.records).items())),
        "outcomes": dict(sorted(Counter(record.outcome.value for record in books.records).items())),
        "generations": sum(milestone.mark == "arrived" for milestone in books.milestones),
        "aborts": len(books.aborts),
        "worker_lives": len(books.lives),
        "memory_mib": [
            round(size / (1 << 20), 1) for size in (books.end.memory_before, books.end.memory_after)
        ],
        "notice_ms": {"p50": half, "p99": most},
        "breaches": {kind: kinds[kind] for kind in KINDS},
    }


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


def _list(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
