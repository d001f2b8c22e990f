"""``python -m tests.chaos.run``: a minute of all faults at once, and the comparison of all records."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack

import pytest

from benchmarks.processes import NotStarted, Processes
from tests.chaos.run import report
from tests.chaos.run.fleet import APART
from tests.chaos.run.plan import plan
from tests.chaos.run.rig import KINDS, Load, Rig
from tests.support.hosts import OtherHost, other_host

CLIENTS, TOKEN_DELAY = 300, 0.03
#: Seconds of the minute: the warm-up, and the time for the start, the rests and the end.
WARM_UP, REST = 20.0, 22.0


def main(arguments: Sequence[str]) -> int:
    """Return 1 if a promise was broken, 2 if the run was not possible."""
    parser = report.parser("tests.chaos.run", __doc__, 1.0)
    parser.add_argument("--clients", type=int, default=CLIENTS, help="how many there are")
    parser.add_argument("--processes", type=int, default=1, help="how many the gateway has")
    options = parser.parse_args(arguments)
    seconds = max(10.0, 60 * options.minutes - WARM_UP - REST)
    print(f"chaos: seed {options.seed}, {seconds:.0f} s after {WARM_UP:.0f} s of warm-up", flush=True)
    try:
        with ExitStack() as stack:
            there, reason = second_host(stack)
            apart = None if there is None else APART
            warm = plan(f"{options.seed}/w", WARM_UP, len(KINDS), apart)
            earnest = plan(f"{options.seed}/r", seconds, len(KINDS), apart)
            processes = stack.enter_context(Processes(options.logs))
            load = Load("chaos", options.clients, TOKEN_DELAY)
            rig = Rig(processes, options.seed, load, options.processes, there)
            rig.round("w", WARM_UP, warm)
            rig.rest()
            before = rig.memory()
            rig.round("r", seconds, earnest)
            books = rig.books(before, rig.rest())
    except NotStarted as error:
        print(error, file=sys.stderr)
        return 2
    return report.finish(options, books, [*warm, *earnest], not_tested=reason)


def second_host(stack: ExitStack) -> tuple[OtherHost | None, str]:
    """Return a host beside this one, until ``stack`` ends, or the reason why there is none."""
    try:
        return stack.enter_context(other_host()), ""
    except pytest.skip.Exception as reason:
        return None, str(reason)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
