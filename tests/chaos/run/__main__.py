"""``python -m tests.chaos.run``: a minute of all faults at once, and the comparison of all records."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.processes import NotStarted, Processes
from tests.chaos.run import report
from tests.chaos.run.plan import plan
from tests.chaos.run.rig import KINDS, Load, Rig

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
    warm = plan(f"{options.seed}/w", WARM_UP, len(KINDS))
    earnest = plan(f"{options.seed}/r", seconds, len(KINDS))
    try:
        with Processes(options.logs) as processes:
            load = Load("chaos", options.clients, TOKEN_DELAY)
            rig = Rig(processes, options.seed, load, options.processes)
            rig.round("w", WARM_UP, warm)
            rig.rest()
            before = rig.memory()
            rig.round("r", seconds, earnest)
            books = rig.books(before, rig.rest())
    except NotStarted as error:
        print(error, file=sys.stderr)
        return 2
    return report.finish(options, books, [*warm, *earnest])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
