"""The workers in a pod.

Owns: which pods are workers. Must never enter: which port is the engine's, HTTP, other resources.

A pod is a worker while it is Ready and not being deleted. A pod that becomes unready, or is being deleted, is
removed: the fleet gives it no new exchanges and finishes those that run, within the pod's grace period.
"""

from __future__ import annotations

from gateway.stores.kubernetes.annotations import Annotations
from gateway.stores.kubernetes.objects import Object, part, parts, text, texts
from gateway.stores.kubernetes.pod_ports import engine_port
from gateway.stores.kubernetes.reading import (
    Candidate,
    Defaults,
    ObjectWorkers,
    Resource,
    address_of,
    problem_of,
    record_of,
)
from gateway.stores.record import INCARNATION


def read_pod(pod: Object, defaults: Defaults) -> ObjectWorkers:
    """Return the workers in ``pod``: none while it must not be used."""
    if not _is_usable(pod):
        return ObjectWorkers()
    try:
        annotations = Annotations.read(texts(pod, "metadata", "annotations"))
        ports = [
            engine_port(pod, wanted, defaults.port_label) for wanted in annotations.ports or (defaults.port,)
        ]
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


PODS = Resource("pods", "/api/v1", read_pod)
