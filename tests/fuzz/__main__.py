"""``make fuzz``: fuzz the targets in turn, for some time or some turns; keep and name a failing input."""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import time
import traceback
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
    parser.add_argument("--minutes", type=float, default=0.0, help="how long")
    parser.add_argument("--seconds", type=float, default=10.0, help="the same; default: 10")
    parser.add_argument("--turns", type=int, help="how many turns of all targets, instead of a time")
    parser.add_argument("--target", choices=sorted(TARGETS), action="append", help="only these")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="to try the same again")
    options = parser.parse_args(arguments)
    seconds = options.minutes * 60 or options.seconds
    tried = dict.fromkeys(options.target or TARGETS, 0)
    length = f"{seconds:g} s" if options.turns is None else f"{options.turns} turns"
    print(f"seed {options.seed}, {length}, targets: {', '.join(tried)}")
    end, turn = time.monotonic() + seconds, 0
    while not turn or (time.monotonic() < end if options.turns is None else turn < options.turns):
        for name in tried:
            failing = _turn(TARGETS[name], options.seed + turn)
            tried[name] += _TURN
            if failing is not None:
                path = CORPUS / name / f"found-{hashlib.sha256(failing).hexdigest()[:12]}"
                path.write_bytes(failing)
                print(f"{name} fails on {path}: fix it and keep that input")
                return 1
        turn += 1
    print("inputs tried: " + ", ".join(f"{name} {count}" for name, count in tried.items()))
    return 0


def _turn(target: Target[Any], number: int) -> bytes | None:
    """Try some inputs on one target; return the smallest one that fails, if any does."""
    seeds = [path.read_bytes() for path in target.corpus()]
    last = b""

    @seed(number)
    @settings(
        max_examples=_TURN, deadline=None, database=None,
        phases=(Phase.generate, Phase.shrink), suppress_health_check=list(HealthCheck),
    )  # fmt: skip
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
