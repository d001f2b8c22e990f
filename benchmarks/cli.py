"""The command line of the benchmarks.

Owns: its options, and the order of the measurements. Must never enter: how anything is measured.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import page, procfs
from benchmarks import report as reports
from benchmarks.bench import FULL, SHORT, Bench
from benchmarks.bounds import BOUNDS
from benchmarks.generators import NO_WRK, wrk_is_here
from benchmarks.growth import CURVES
from benchmarks.knee import knee
from benchmarks.loads import ROWS, shrunk
from benchmarks.peers import start_peers
from benchmarks.processes import NotStarted, Processes
from benchmarks.report import Report
from benchmarks.table import raw, result_of, run_row
from benchmarks.targets import (
    BASELINE,
    BASELINE_COMPILED,
    COMPILED,
    COMPILED_FOLDER,
    DIRECT,
    GATEWAY,
    Target,
    start_gateway,
)
from benchmarks.workers import start_workers

ROOT = Path(__file__).resolve().parent.parent
MEASURES = {**BOUNDS, "open-streams": knee}
GROUPS = {
    "table": tuple(row.name for row in ROWS),
    "bounds": tuple(MEASURES),
    "growth": tuple(f"growth-{name}" for name in CURVES),
}
NAMES = tuple(name for group in GROUPS.values() for name in group)


def main(arguments: Sequence[str]) -> int:
    """Measure, print and write the report. Return 1 if the gateway or a worker did not start."""
    options = _parse(arguments)
    try:
        report = _put_together(options.read) if options.read else _measure(options)
    except NotStarted as error:
        print(error, file=sys.stderr)
        return 1
    print(reports.text(report))
    if options.json is not None:
        report.write(options.json)
    if options.write_docs:
        page.write(report)
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="What the gateway costs, beside its peers."
    )
    parser.add_argument(
        "--full", action="store_true", help="five rounds of 3 s, bounds and growth: about 20 minutes"
    )
    parser.add_argument("--only", type=_names, help=f"names, with commas: {', '.join((*GROUPS, *NAMES))}")
    parser.add_argument("--peers", type=Path, help="folder of virtual environments (BENCH_PEERS)")
    parser.add_argument(
        "--gateway",
        type=_checkout,
        default=ROOT,
        help="checkout whose gateway is measured, by default this one",
    )
    parser.add_argument(
        "--baseline",
        type=_checkout,
        help="another checkout, for a before and an after: measured in the same rounds",
    )
    parser.add_argument("--json", type=_writable, help="file for all that was found")
    parser.add_argument(
        "--read", type=_report, nargs="+", help="files of earlier runs to put together, instead of measuring"
    )
    parser.add_argument(
        "--write-docs",
        action="store_true",
        help="put it into docs/performance.md, in place of all its figures",
    )
    parser.add_argument(
        "--logs", type=Path, help="folder for the logs of all processes; by default they are not kept"
    )
    parser.add_argument("--rounds", type=_count, help="instead of 1, or 5 with --full")
    parser.add_argument("--seconds", type=_duration, help="of each load, instead of 1, or 3 with --full")
    parser.add_argument("--connections", type=_count, help="at most so many in each load: to try the harness")
    return parser.parse_args(arguments)


def _checkout(text: str) -> Path:
    """Return a folder that contains a gateway. Without this check the installed gateway would be measured
    instead.
    """
    folder = Path(text).resolve()
    if not (folder / "gateway" / "__init__.py").exists():
        raise argparse.ArgumentTypeError(f"{folder} has no gateway")
    return folder


def _writable(text: str) -> Path:
    """Return a path whose folder exists, checked before minutes of measuring rather than after them."""
    file = Path(text)
    if file.is_dir() or not file.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{file} cannot be written")
    return file


def _report(text: str) -> Report:
    """Read the report of an earlier run."""
    try:
        return reports.read(Path(text))
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error.strerror}") from None
    except (ValueError, TypeError, KeyError):
        raise argparse.ArgumentTypeError(f"{text} is no report of this harness") from None


def _count(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)


def _duration(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds over 0")
    return seconds


def _names(text: str) -> tuple[str, ...]:
    names = [name for word in text.split(",") for name in GROUPS.get(word.strip(), (word.strip(),))]
    if unknown := [name for name in names if name not in NAMES]:
        raise argparse.ArgumentTypeError(
            f"there is no {', '.join(unknown)}; there are {', '.join((*GROUPS, *NAMES))}"
        )
    return tuple(names)


def _put_together(found: Sequence[Report]) -> Report:
    first, *others = found
    for each in others:
        first.add(each)
    return first


def _measure(options: argparse.Namespace) -> Report:
    scale = FULL if options.full else SHORT
    scale = replace(scale, rounds=options.rounds or scale.rounds, seconds=options.seconds or scale.seconds)
    if options.connections:
        scale = replace(scale, connections=options.connections)
    wanted = options.only or (NAMES if options.full else (*GROUPS["table"], *BOUNDS))
    report = Report(procfs.machine(), [_command(options)], "full" if options.full else "short")
    if not wrk_is_here():
        report.missing.append(NO_WRK)
    with Processes(options.logs) as processes:
        workers = start_workers(processes, 2)
        bench = Bench(processes, workers, options.gateway, scale, _print_line)
        if table := [name for name in wanted if name in GROUPS["table"]]:
            _table(bench, report, table, options)
        for name in wanted:
            if name not in GROUPS["table"]:
                _one(bench, report, name)
    return report


def _command(options: argparse.Namespace) -> str:
    """Return the command line without this machine's folders, so that it can be used elsewhere."""
    given = {
        "--only": options.only and ",".join(options.only),
        "--rounds": options.rounds,
        "--seconds": options.seconds,
        "--connections": options.connections,
        "--peers": _peers(options) and "DIR",
    }
    words = ["--full"] * options.full + [f"{flag} {value}" for flag, value in given.items() if value]
    return f'make bench ARGS="{" ".join(words)}"' if words else "make bench"


def _peers(options: argparse.Namespace) -> Path | None:
    given = os.environ.get("BENCH_PEERS")
    return options.peers or (Path(given) if given else None)


def _table(bench: Bench, report: Report, names: Sequence[str], options: argparse.Namespace) -> None:
    ports = bench.workers.ports
    builds = {GATEWAY: bench.checkout, COMPILED: bench.checkout / COMPILED_FOLDER}
    if options.baseline is not None:
        builds |= {BASELINE: options.baseline, BASELINE_COMPILED: options.baseline / COMPILED_FOLDER}
    gateways = [
        start_gateway(bench.processes, ports, folder, name=name)
        for name, folder in builds.items()
        if folder.exists()
    ]
    peers, missing = start_peers(bench.processes, ports, _peers(options))
    report.missing += missing
    for each in report.missing:
        _print_line(f"!!! MISSING: {each}")
    targets = [Target(DIRECT, ports[0]), *peers, *gateways]
    report.add_targets(targets)
    for row in shrunk(ROWS, bench.scale.connections):
        if row.name in names:
            rounds = run_row(bench, row, targets)
            report.table[row.name] = result_of(row, rounds)
            report.samples += raw(row.name, rounds)


def _one(bench: Bench, report: Report, name: str) -> None:
    """Measure one bound or curve. A failure is reported and does not stop the other measurements."""
    _print_line(name)
    try:
        if name in MEASURES:
            report.bounds |= {each.name: each for each in MEASURES[name](bench)}
        else:
            report.curves |= {each.name: each for each in CURVES[name.removeprefix("growth-")](bench)}
    except NotStarted as error:
        report.missing.append(f"{name}: {error}")
    if GATEWAY not in report.targets:
        report.targets[GATEWAY] = {"version": procfs.commit(bench.checkout), "command": ""}


def _print_line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
