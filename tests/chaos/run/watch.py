"""The resources of the gateway: open files, sockets, and its metrics."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from benchmarks import procfs
from benchmarks.processes import ask

Counters = Mapping[tuple[str, frozenset[tuple[str, str]]], float]

_PREFIX = "dynamo_frontend_"
_ESTABLISHED_OR_CLOSING = frozenset({"01", "04", "05", "08", "0B"})


def descriptors(pid: int) -> int:
    """Return the number of open files, sockets included, of a process and its children."""
    return sum(1 for _ in _open_files(pid))


def sockets(pid: int, port: int, workers: Collection[int]) -> tuple[int, int]:
    """Return the numbers of TCP connections that the gateway on ``port``, in one process or several, has to
    ``workers`` (ports), and of those that its clients have to it.
    """
    own = set()
    for entry in _open_files(pid):
        with suppress(OSError):
            own.add(str(entry.readlink()))
    # By inode: the table may list a socket twice while others are opened and closed.
    rows = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    table = {fields[9]: fields for fields in map(str.split, rows)}
    to_workers = of_clients = 0
    for inode, fields in table.items():
        if f"socket:[{inode}]" in own and fields[3] in _ESTABLISHED_OR_CLOSING:
            local, remote = (int(fields[at].rpartition(":")[2], 16) for at in (1, 2))
            to_workers += remote in workers
            of_clients += local == port
    return to_workers, of_clients


def _open_files(pid: int) -> Iterator[Path]:
    for each in procfs.tree(pid):
        yield from Path(f"/proc/{each}/fd").iterdir()


def counters(port: int) -> Counters:
    """Return all samples of the gateway's metrics, without the prefix; empty if it does not answer."""
    status, body = ask(port, "GET", "/metrics")
    if status != 200:
        return {}
    return {
        (sample.name.removeprefix(_PREFIX), frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def total(found: Counters, name: str, **labels: str) -> float:
    """Return the sum of all series of ``name`` with these labels."""
    wanted = set(labels.items())
    return sum(value for (each, has), value in found.items() if each == name and wanted <= has)


def access_lines(log: Path) -> list[dict[str, Any]]:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("{")]
    return [found for line in lines if "outcome" in (found := json.loads(line))]
