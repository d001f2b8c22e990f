"""``make fuzz``: fuzz each target in turn for a given time; keep and name a failing input.

Owns: the command line and the clock. Must never enter: what is fuzzed.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.hostile import cut, mutated, random_cuts
from tests.fuzz.target import CORPUS, Target
from tests.fuzz.targets import TARGETS

#: Inputs tried on one target before the next one.
_TURN = 250


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description="Try hostile bytes for a given time.")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, default=0.0, help="how long")
    length.add_argument("--seconds", type=float, default=10.0, help="the same; default: 10")
    parser.add_argument("--target", choices=sorted(TARGETS), action="append", help="only these")
    parser.add_argument(
        "--seed", type=int, default=random.randrange(2**32), help="to try the same inputs again"
    )
    options = parser.parse_args(arguments)
    chosen = [TARGETS[name] for name in options.target or TARGETS]
    return _fuzz(chosen, options.minutes * 60 or options.seconds, options.seed)


def _fuzz(targets: list[Target[Any]], seconds: float, number: int) -> int:
    print(f"seed {number}, {seconds:g} s, targets: {', '.join(target.name for target in targets)}")
    tried = {target.name: 0 for target in targets}
    end = time.monotonic() + seconds
    turn = 0
    while not turn or time.monotonic() < end:
        for target in targets:
            failing = _turn(target, number + turn, end)
            tried[target.name] += _TURN
            if failing is not None:
                print(f"{target.name} fails on {_keep(target, failing)}: fix it and keep that input")
                return 1
        turn += 1
    print("inputs tried: " + ", ".join(f"{name} {count}" for name, count in tried.items()))
    return 0


def _turn(target: Target[Any], number: int, end: float) -> bytes | None:
    """Try some inputs on one target; return the smallest one that fails, if any does."""
    seeds = [path.read_bytes() for path in target.corpus()]
    last = b""

    @seed(number)
    @settings(
        max_examples=_TURN,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(mutated(seeds), st.data())
    def try_some(data: bytes, more: st.DataObject) -> None:
        nonlocal last
        last = data
        target.check(data, [cut(data, more.draw(random_cuts(len(data)), "cuts"))])

    try:
        try_some()
    except Exception:  # noqa: BLE001 - any exception is a finding
        traceback.print_exc()
        return last
    return None


def _keep(target: Target[Any], data: bytes) -> Path:
    path = CORPUS / target.name / f"found-{hashlib.sha256(data).hexdigest()[:12]}"
    path.write_bytes(data)
    return path


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
