"""Figures from /proc: processor time, memory, the machine.

Owns: reading them. Must never enter: a decision about what they mean.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

_TICK = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


def tree(pid: int) -> list[int]:
    """Return ``pid`` and all its descendants."""
    children = defaultdict(list)
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (fields := _stat(int(entry.name))):
            children[int(fields[1])].append(int(entry.name))
    found = [pid]
    for each in found:
        found += children[each]
    return found


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process with its threads and children, in user and kernel mode, in
    seconds.
    """
    fields = (_stat(each) for each in tree(pid))
    return sum((int(each[11]) + int(each[12])) / _TICK for each in fields if each)


def resident(pid: int) -> int:
    """Return the resident anonymous memory of a process with its children, in bytes."""
    total = 0
    for each in tree(pid):
        try:
            lines = (_PROC / str(each) / "status").read_text().splitlines()
        except OSError:
            continue
        total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
    return total


def _stat(pid: int) -> list[str]:
    """Return the fields after the name, which may contain any characters; [] if the process has ended."""
    try:
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def machine() -> dict[str, Any]:
    """Describe the machine: processor, cores, memory, system."""
    models = [line for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = [line for line in _lines("/proc/meminfo") if line.startswith("MemTotal")]
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": models[0].partition(":")[2].strip() if models else platform.machine(),
        "memory_gib": round(int(memory[0].split()[1]) / (1 << 20), 1) if memory else None,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def commit(checkout: Path) -> str:
    """Return the measured commit, with a mark if the product's own files differ from it."""
    try:
        name = _git(checkout, "rev-parse", "--short", "HEAD")
        return f"{name} and changes" if _git(checkout, "status", "--porcelain", "--", "gateway") else name
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(checkout: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=checkout, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
