"""The workers in a pod.

Owns: which pods are workers, and at which ports. Must never enter: HTTP, other resources.

A pod is a worker while it is Ready and not being deleted. A pod that becomes unready, or is being deleted, is
removed: the fleet gives it no new exchanges and finishes those that run, within the pod's grace period.
"""

from __future__ import annotations

from collections.abc import Iterator

from gateway.stores.kubernetes.annotations import Annotations
from gateway.stores.kubernetes.objects import Object, number, part, parts, text, texts
from gateway.stores.kubernetes.reading import (
    Candidate,
    Defaults,
    ObjectWorkers,
    Resource,
    UnusableObject,
    address_of,
    problem_of,
    record_of,
)
from gateway.stores.record import INCARNATION

#: The name of the port that is used if a pod has several and none is configured.
DEFAULT_PORT_NAME = "http"


def read_pod(pod: Object, defaults: Defaults) -> ObjectWorkers:
    """Return the workers in ``pod``: none while it must not be used."""
    if not _is_usable(pod):
        return ObjectWorkers()
    try:
        annotations = Annotations.read(texts(pod, "metadata", "annotations"))
        ports = [_port(pod, wanted) for wanted in annotations.ports or (defaults.port,)]
        candidates = tuple(
            _candidate(pod, annotations, port, annotations.scheme or defaults.scheme)
            for port in dict.fromkeys(ports)
        )
    except ValueError as error:
        return ObjectWorkers(problem=f"ignored: {error}")
    return ObjectWorkers(candidates, problem_of(annotations))


def _candidate(pod: Object, annotations: Annotations, port: int, scheme: str) -> Candidate:
    host, preference = address_of(text(pod, "status", "podIP"))
    record = record_of(f"{scheme}://{host}:{port}", annotations, _labels(pod))
    owner = text(pod, "metadata", "uid")
    return Candidate(record, (owner, str(port)), preference, text(pod, "metadata", "creationTimestamp"))


def _is_usable(pod: Object) -> bool:
    if part(pod, "metadata").get("deletionTimestamp"):
        return False
    return any(
        text(each, "type") == "Ready" and text(each, "status") == "True"
        for each in parts(pod, "status", "conditions")
    )


def _labels(pod: Object) -> dict[str, str]:
    return {
        "kubernetes/namespace": text(pod, "metadata", "namespace"),
        "kubernetes/pod": text(pod, "metadata", "name"),
        INCARNATION: text(pod, "metadata", "uid"),
        "kubernetes/node": text(pod, "spec", "nodeName"),
    }


def _port(pod: Object, wanted: int | str | None) -> int:
    if isinstance(wanted, int):
        return wanted
    ports = list(_container_ports(pod))
    if wanted is None and len({port for _, port in ports}) == 1:
        return ports[0][1]
    name = wanted or DEFAULT_PORT_NAME
    for each, port in ports:
        if each == name:
            return port
    if wanted is not None:
        raise UnusableObject(f"no container has a TCP port named {wanted!r}")
    if not ports:
        raise UnusableObject("its containers declare no TCP port, so the port must be set")
    raise UnusableObject(f"it has several ports, none named {DEFAULT_PORT_NAME!r}, so the port must be set")


def _container_ports(pod: Object) -> Iterator[tuple[str, int]]:
    """Yield name and number of all TCP ports, those of sidecars last."""
    sidecars = (
        each for each in parts(pod, "spec", "initContainers") if each.get("restartPolicy") == "Always"
    )
    for container in (*parts(pod, "spec", "containers"), *sidecars):
        for each in parts(container, "ports"):
            port = number(each, "containerPort")
            if port and text(each, "protocol") in ("", "TCP"):
                yield text(each, "name"), port


PODS = Resource("pods", "/api/v1", read_pod)
