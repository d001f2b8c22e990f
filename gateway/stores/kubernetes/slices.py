"""The workers in an EndpointSlice of a Service.

Owns: which endpoints are workers, and at which port. Must never enter: HTTP, other resources.

Kubernetes copies a Service's labels to its EndpointSlices, but not its annotations. The gateway's settings
are therefore read from both; an annotation (of a slice that a person wrote) takes precedence. Missing
conditions have the meaning that the API defines: ready, and not terminating.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gateway.stores.kubernetes.annotations import SCHEMES, Annotations
from gateway.stores.kubernetes.objects import Object, flag, number, parts, text, texts
from gateway.stores.kubernetes.pod_ports import DEFAULT_PORT_NAME
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

#: The label with the name of the Service, which Kubernetes sets on every slice.
SERVICE_LABEL = "kubernetes.io/service-name"


def read_slice(slice_: Object, defaults: Defaults) -> ObjectWorkers:
    """Return the workers in one slice of a Service."""
    try:
        if text(slice_, "addressType") not in ("IPv4", "IPv6"):
            raise UnusableObject(f"addresses of type {text(slice_, 'addressType')[:40]!r} are not supported")
        annotations = Annotations.read(
            {**texts(slice_, "metadata", "labels"), **texts(slice_, "metadata", "annotations")}
        )
        ports = [_port(slice_, wanted, defaults) for wanted in annotations.ports or (defaults.port,)]
    except ValueError as error:
        return ObjectWorkers(problem=f"ignored: {error}")
    candidates: list[Candidate] = []
    problem = problem_of(annotations)
    for endpoint in filter(_is_usable, parts(slice_, "endpoints")):
        try:
            candidates.extend(_candidates(slice_, endpoint, annotations, dict(ports)))
        except ValueError as error:
            problem = f"an endpoint was ignored: {error}"
    return ObjectWorkers(tuple(candidates), problem)


def _is_usable(endpoint: Object) -> bool:
    # Not "serving": for a Service with publishNotReadyAddresses, "ready" is true as well.
    ready = flag(endpoint, "conditions", "ready", default=True)
    return ready and not flag(endpoint, "conditions", "terminating", default=False)


def _candidates(
    slice_: Object, endpoint: Object, annotations: Annotations, ports: Mapping[int, str]
) -> Iterator[Candidate]:
    addresses = endpoint.get("addresses")
    # All addresses of an endpoint belong to the same server.
    first = addresses[0] if isinstance(addresses, list) and addresses else ""
    host, preference = address_of(first if isinstance(first, str) else "")
    labels = _labels(slice_, endpoint)
    owner = labels[INCARNATION] or host
    for port, scheme in ports.items():
        record = record_of(f"{annotations.scheme or scheme}://{host}:{port}", annotations, labels)
        yield Candidate(record, (owner, str(port)), preference, text(slice_, "metadata", "creationTimestamp"))


def _labels(slice_: Object, endpoint: Object) -> dict[str, str]:
    is_pod = text(endpoint, "targetRef", "kind") == "Pod"
    return {
        "kubernetes/namespace": text(slice_, "metadata", "namespace"),
        "kubernetes/service": texts(slice_, "metadata", "labels").get(SERVICE_LABEL, ""),
        "kubernetes/pod": text(endpoint, "targetRef", "name") if is_pod else "",
        INCARNATION: text(endpoint, "targetRef", "uid"),
        "kubernetes/node": text(endpoint, "nodeName"),
    }


def _port(slice_: Object, wanted: int | str | None, defaults: Defaults) -> tuple[int, str]:
    """Return number and scheme of the port that is ``wanted``. Raises UnusableObject."""
    ports = list(_tcp_ports(slice_))
    if wanted is None and len(ports) == 1:
        return _described(ports[0], defaults)
    for each in ports:
        if (wanted or DEFAULT_PORT_NAME) in (text(each, "name"), number(each, "port")):
            return _described(each, defaults)
    if isinstance(wanted, int):
        return wanted, defaults.scheme
    named = f"no port named {wanted or DEFAULT_PORT_NAME!r}"
    raise UnusableObject(named if wanted else f"it has {len(ports)} ports, and {named}: the port must be set")


def _tcp_ports(slice_: Object) -> Iterator[Object]:
    return (
        each
        for each in parts(slice_, "ports")
        if number(each, "port") and text(each, "protocol") in ("", "TCP")
    )


def _described(port: Object, defaults: Defaults) -> tuple[int, str]:
    protocol = text(port, "appProtocol").lower()
    return number(port, "port") or 0, protocol if protocol in SCHEMES else defaults.scheme


ENDPOINT_SLICES = Resource("endpointslices", "/apis/discovery.k8s.io/v1", read_slice)
