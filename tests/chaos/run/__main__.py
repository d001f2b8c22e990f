"""``python -m tests.chaos.run``: a minute of all faults at once, and the comparison of all records.

Owns: the order of a run, its options. Must never enter: the promises (checker.py).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.processes import NotStarted, Processes
from tests.chaos.run import page, report
from tests.chaos.run.checker import Case, check
from tests.chaos.run.plan import Fault, plan
from tests.chaos.run.records import Books
from tests.chaos.run.rig import KINDS, Load, Rig

CLIENTS, TOKEN_DELAY = 300, 0.03
#: Seconds of the minute: the warm-up, and the time for the start, the rests and the end.
WARM_UP, REST = 20.0, 22.0


def main(arguments: Sequence[str]) -> int:
    """Return 1 if a promise was broken, 2 if the run was not possible."""
    options = _parse(arguments)
    seed = options.seed or str(random.randrange(10**6))
    seconds = max(10.0, 60 * options.minutes - WARM_UP - REST)
    print(f"chaos: seed {seed}, {seconds:.0f} s after {WARM_UP:.0f} s of warm-up", flush=True)
    try:
        books, faults = _run(options, seed, seconds)
    except NotStarted as error:
        print(error, file=sys.stderr)
        return 2
    breaches = check(books)
    found = report.summary(seed, books, faults, breaches)
    print(report.text(found))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    if options.write_docs:
        page.write("chaos", report.markdown(found))
    if breaches:
        print(report.details(Case(books), breaches), f"again: --seed {seed}", sep="\n\n", file=sys.stderr)
    return 1 if breaches else 0


def _run(options: argparse.Namespace, seed: str, seconds: float) -> tuple[Books, Sequence[Fault]]:
    """Warm up, rest, and run with faults."""
    warm, earnest = (
        plan(f"{seed}/{name}", time, len(KINDS)) for name, time in (("w", WARM_UP), ("r", seconds))
    )
    with Processes(options.logs) as processes:
        rig = Rig(processes, seed, Load("chaos", options.clients, TOKEN_DELAY), options.processes)
        rig.round("w", WARM_UP, warm)
        rig.rest()
        before = rig.memory()
        rig.round("r", seconds, earnest)
        return rig.books(before, rig.rest()), [*warm, *earnest]


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.run", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long it all may take, about")
    parser.add_argument("--seed", help="faults and choices of an earlier run")
    parser.add_argument("--clients", type=int, default=CLIENTS, help="how many there are")
    parser.add_argument("--processes", type=int, default=1, help="how many the gateway has")
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--write-docs", action="store_true", help="put the figures into docs/reliability.md")
    parser.add_argument("--logs", type=Path, help="new folder to keep all records and logs in")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
