"""What was made of one object of the API server.

Owns: the record of a reading, and how an address, a scheme and a port become a worker's URL. Must never
enter: the shape of any object, where readings go.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gateway.stores.kubernetes.annotations import PREFIX, Annotations
from gateway.stores.kubernetes.objects import Object, text
from gateway.stores.record import WorkerRecord


@dataclass(frozen=True, slots=True)
class Defaults:
    """For objects that do not say it themselves. ``port`` is a number or a name, None: the one it has."""

    port: int | str | None = None
    scheme: str = "http"


class UnusableObject(ValueError):
    """An object that should be a worker cannot be one; the message says why."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One worker that an object speaks of.

    ``identity`` is one for all addresses of one server, of which ``rank`` says which is liked best (the
    lowest). ``born`` is the object's creation as text that sorts: of two servers that claim one URL, the
    younger one has it.
    """

    record: WorkerRecord
    identity: tuple[str, str]
    rank: int
    born: str


@dataclass(frozen=True, slots=True)
class ObjectWorkers:
    """``problem`` is for the object's owner, and empty where there is nothing to say."""

    seats: tuple[Candidate, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of object that knows workers. ``path`` is that of its API group and version."""

    name: str
    path: str
    read: Callable[[Object, Defaults], ObjectWorkers]

    def target(self, namespace: str | None) -> str:
        """Path of its collection in ``namespace``, None: in all."""
        within = f"/namespaces/{namespace}" if namespace else ""
        return f"{self.path}{within}/{self.name}"


def address_of(ip: str) -> tuple[str, int]:
    """An IP address as a URL has it, and its family's rank. Raises PassedOver."""
    try:
        address = ipaddress.ip_address(ip)
    except ValueError:
        raise UnusableObject(f"its address {ip[:80]!r} is no IP address") from None
    if "%" in ip:
        raise UnusableObject(f"its address {ip[:80]!r} is one of a single link")
    return (f"[{address}]", 1) if address.version == 6 else (str(address), 0)


def record_of(url: str, annotations: Annotations, labels: Mapping[str, str]) -> WorkerRecord:
    """``labels`` tell where in the cluster it is; those that are empty are left out. Raises ValueError."""
    where = {name: value for name, value in labels.items() if value}
    return WorkerRecord(
        url=url,
        format=annotations.format,
        model=annotations.model,
        worker_type=annotations.worker_type,
        bootstrap_port=annotations.bootstrap_port,
        priority=annotations.priority,
        labels={**annotations.labels, **where},
        held=annotations.held,
    )


def name_of(thing: Object) -> tuple[str, str]:
    """Namespace and name: what an object is called for as long as it exists, and maybe its successor too."""
    return text(thing, "metadata", "namespace"), text(thing, "metadata", "name")


def problem_of(annotations: Annotations) -> str:
    """What is wrong with annotations that do no harm."""
    return (
        f"unknown: {', '.join(PREFIX + name for name in annotations.unknown)}" if annotations.unknown else ""
    )
