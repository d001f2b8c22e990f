"""How many files this process may have open, and for how many clients that is enough.

Owns: the system's limit, and what is kept of it for other things than clients. Must never enter: the files
themselves.
"""

from __future__ import annotations

import logging
import resource

from gateway.downstream.limits import RESERVED_CONNECTIONS
from gateway.fleet.quotas import KINDS

log = logging.getLogger(__name__)

#: Files that a process has open beside its connections: logs, the listener, the store, names being looked up.
SPARE_FILES = 64
#: The part of all files that each kind of the gateway's own connections (Quotas) may have open, and how many
#: that are at least.
QUOTA_PART, LEAST_QUOTA = 16, 4
#: Open files without which it is not worth starting, and for each of several processes, its channel and its
#: listening socket among them.
LEAST_FILES, FILES_PER_PROCESS = 64, 4


class TooFewFiles(Exception):
    """This process may not open as many files as it needs; the message says how many that are."""


def check_file_limit(processes: int) -> None:
    """Raises TooFewFiles: with less, whatever fails first would say something else."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = LEAST_FILES + FILES_PER_PROCESS * processes
    if hard != resource.RLIM_INFINITY and hard < least:
        raise TooFewFiles(f"this process may have {hard} open files, and {least} are needed (ulimit -Hn)")


def raise_file_limit() -> None:
    """Allow as many open sockets as the system lets this process have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        log.info("open files: limit raised from %d to %d", soft, hard)


def tell_room(wanted: int | None) -> None:
    """Log for how many clients there is room, of the ``wanted`` ones; None: of any number."""
    files = open_files()
    if files is None:
        return
    enough = most_connections(files)
    if wanted is not None and wanted > enough:
        log.warning("open files: a process has no more than it needs for %d connections of clients", enough)
    else:
        log.info("a process takes up to %d connections of clients", wanted or enough)


def open_files() -> int | None:
    """How many files this process may open; None: any number."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if files == resource.RLIM_INFINITY else files


def most_connections(files: int) -> int:
    """How many clients one process can serve at once that may open so many ``files``: each may need a
    connection to a worker, too."""
    return max(1, (files - SPARE_FILES - KINDS * quota_of(files) - RESERVED_CONNECTIONS) // 2)


def quota_of(files: int) -> int:
    """How many connections of its own of each kind a process may have that may open so many ``files``."""
    return max(LEAST_QUOTA, files // QUOTA_PART)
