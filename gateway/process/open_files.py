"""The open-file limit of the process, and how many clients it allows for.

Owns: RLIMIT_NOFILE, and the part of it that is reserved for other things than clients. Must never enter: the
files themselves.
"""

from __future__ import annotations

import logging
import resource

from gateway.downstream.limits import RESERVED_CONNECTIONS
from gateway.fleet.quotas import KINDS

log = logging.getLogger(__name__)

#: Files of a process that are no connections: logs, the listener, the store, name resolution.
SPARE_FILES = 64
#: Each kind of the gateway's own connections (Quotas) may have one in ``QUOTA_DIVISOR`` of all files, and at
#: least ``MIN_QUOTA``.
QUOTA_DIVISOR, MIN_QUOTA = 16, 4
#: The least number of open files with which the gateway starts, and how many more for each of several
#: processes (among them its channel and its listening socket).
MIN_FILES, FILES_PER_PROCESS = 64, 4


class TooFewFiles(Exception):
    """The open-file limit is too low; the message says how many files are needed."""


def check_file_limit(processes: int) -> None:
    """Raise TooFewFiles if the hard limit is too low for ``processes`` processes.

    Otherwise the first failing operation would report the cause less clearly.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = MIN_FILES + FILES_PER_PROCESS * processes
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise TooFewFiles(f"this process may have {hard} open files, and {needed} are needed (ulimit -Hn)")


def raise_file_limit() -> None:
    """Raise the soft limit to the hard limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        log.info("open files: limit raised from %d to %d", soft, hard)


def log_capacity(wanted: int | None) -> None:
    """Log how many clients one process can serve; warn if ``wanted`` (None: any number) are too many."""
    files = open_files()
    if files is None:
        return
    possible = max_connections_for(files)
    if wanted is not None and wanted > possible:
        log.warning("open files: the limit of a process allows for only %d connections of clients", possible)
    else:
        log.info("a process takes up to %d connections of clients", wanted or possible)


def open_files() -> int | None:
    """Return how many files this process may open; None: any number."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if files == resource.RLIM_INFINITY else files


def max_connections_for(files: int) -> int:
    """Return how many clients a process with ``files`` open files can serve at once.

    Each client may need a connection to a worker as well.
    """
    return max(1, (files - SPARE_FILES - KINDS * quota_of(files) - RESERVED_CONNECTIONS) // 2)


def scarce_from(files: int) -> int:
    """Return with how many open files a process that may have ``files`` keeps none open that it can close."""
    return files - files // 4


def quota_of(files: int) -> int:
    """Return how many of its own connections of each kind a process with ``files`` open files may have."""
    return max(MIN_QUOTA, files // QUOTA_DIVISOR)
