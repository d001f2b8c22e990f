"""The workers that one object of the API server describes.

Owns: the result of reading an object, and how an address, a scheme and a port make a worker's URL. Must never
enter: the structure of any object, what happens to the result.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gateway.stores.kubernetes.annotations import PREFIX, Annotations
from gateway.stores.kubernetes.objects import Object, text
from gateway.stores.record import WorkerRecord


@dataclass(frozen=True, slots=True)
class Defaults:
    """The defaults for objects without annotations.

    ``port`` is a number or a name; None: the only port it has. ``port_label`` is a label of pods whose number
    is added to the port.
    """

    port: int | str | None = None
    scheme: str = "http"
    port_label: str | None = None


class UnusableObject(ValueError):
    """An object cannot be used as a worker; the message says why."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker that an object describes.

    ``identity`` is one for all addresses of one server, of which ``preference`` says which is liked best (the
    lowest). ``created`` is the object's creation as text that sorts: of two servers that claim one URL, the
    younger one has it.
    """

    record: WorkerRecord
    identity: tuple[str, str]
    preference: int
    created: str

    @property
    def name(self) -> str:
        """The name of its pod, with the namespace; its address if it is in no pod."""
        labels = self.record.labels
        return f"{labels.get('kubernetes/namespace', '')}/{labels.get('kubernetes/pod') or self.identity[0]}"


@dataclass(frozen=True, slots=True)
class ObjectWorkers:
    """The workers of one object. ``problem`` is a message for the object's owner, or empty."""

    candidates: tuple[Candidate, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of objects that describe workers. ``path`` is that of its API group and version."""

    name: str
    path: str
    read: Callable[[Object, Defaults], ObjectWorkers]

    def target(self, namespace: str | None) -> str:
        """Return the path of its collection in ``namespace``; None: in all namespaces."""
        within = f"/namespaces/{namespace}" if namespace else ""
        return f"{self.path}{within}/{self.name}"


def address_of(ip: str) -> tuple[str, int]:
    """Return an IP address as it is written in a URL, and its preference. Raises UnusableObject."""
    try:
        address = ipaddress.ip_address(ip)
    except ValueError:
        raise UnusableObject(f"its address {ip[:80]!r} is not an IP address") from None
    if "%" in ip:
        raise UnusableObject(f"its address {ip[:80]!r} is a link-local address")
    return (f"[{address}]", 1) if address.version == 6 else (str(address), 0)


def record_of(url: str, annotations: Annotations, labels: Mapping[str, str]) -> WorkerRecord:
    """Return the record of a worker. ``labels`` locate it in the cluster; empty ones are left out.

    Raises ValueError.
    """
    where = {name: value for name, value in labels.items() if value}
    card = annotations.card
    if annotations.vocab_size is not None:
        card = replace(card, vocab_size=annotations.vocab_size)
    return WorkerRecord(
        url=url,
        format=annotations.format,
        model=annotations.model,
        worker_type=annotations.worker_type,
        bootstrap_port=annotations.bootstrap_port,
        priority=annotations.priority,
        card=card,
        labels={**annotations.labels, **where},
        cordoned=annotations.held,
    )


def name_of(object_: Object) -> tuple[str, str]:
    """Return namespace and name, which are unique among existing objects, but can be reused later."""
    return text(object_, "metadata", "namespace"), text(object_, "metadata", "name")


def problem_of(annotations: Annotations) -> str:
    """Return a message about unknown annotations, which are otherwise ignored."""
    return (
        f"unknown: {', '.join(PREFIX + name for name in annotations.unknown)}" if annotations.unknown else ""
    )
