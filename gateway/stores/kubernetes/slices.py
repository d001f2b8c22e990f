"""An EndpointSlice, and the workers behind the Service it belongs to.

Owns: which endpoints are workers, and at which port. Must never enter: HTTP, other kinds of objects.

Kubernetes copies a Service's labels to its slices, and not its annotations: what is said of the workers is
read from both, an annotation (of a slice that somebody wrote by hand) before a label. Conditions that are
missing mean what the API says they mean: ready, and not terminating.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gateway.stores.kubernetes.annotations import SCHEMES, Annotations
from gateway.stores.kubernetes.objects import Object, flag, number, parts, text, texts
from gateway.stores.kubernetes.pods import USUAL_NAME
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

#: A label that Kubernetes puts on every slice: the name of its Service.
SERVICE_LABEL = "kubernetes.io/service-name"


def read_slice(piece: Object, defaults: Defaults) -> ObjectWorkers:
    """The workers in one slice of a Service."""
    try:
        if text(piece, "addressType") not in ("IPv4", "IPv6"):
            raise UnusableObject(f"addresses of type {text(piece, 'addressType')[:40]!r} are not used")
        annotations = Annotations.read(
            {**texts(piece, "metadata", "labels"), **texts(piece, "metadata", "annotations")}
        )
        ports = [_port(piece, wanted, defaults) for wanted in annotations.ports or (defaults.port,)]
    except ValueError as error:
        return ObjectWorkers(problem=f"passed over: {error}")
    seats: list[Candidate] = []
    problem = problem_of(annotations)
    for endpoint in filter(_is_member, parts(piece, "endpoints")):
        try:
            seats.extend(_seats(piece, endpoint, annotations, dict(ports)))
        except ValueError as error:
            problem = f"an endpoint was passed over: {error}"
    return ObjectWorkers(tuple(seats), problem)


def _is_member(endpoint: Object) -> bool:
    # "serving" is not asked: a Service that publishes addresses which are not ready says so by "ready".
    ready = flag(endpoint, "conditions", "ready", default=True)
    return ready and not flag(endpoint, "conditions", "terminating", default=False)


def _seats(
    piece: Object, endpoint: Object, annotations: Annotations, ports: Mapping[int, str]
) -> Iterator[Candidate]:
    addresses = endpoint.get("addresses")
    # All addresses of an endpoint lead to the same server.
    first = addresses[0] if isinstance(addresses, list) and addresses else ""
    host, rank = address_of(first if isinstance(first, str) else "")
    labels = _labels(piece, endpoint)
    owner = labels[INCARNATION] or host
    for port, scheme in ports.items():
        record = record_of(f"{annotations.scheme or scheme}://{host}:{port}", annotations, labels)
        yield Candidate(record, (owner, str(port)), rank, text(piece, "metadata", "creationTimestamp"))


def _labels(piece: Object, endpoint: Object) -> dict[str, str]:
    is_pod = text(endpoint, "targetRef", "kind") == "Pod"
    return {
        "kubernetes/namespace": text(piece, "metadata", "namespace"),
        "kubernetes/service": texts(piece, "metadata", "labels").get(SERVICE_LABEL, ""),
        "kubernetes/pod": text(endpoint, "targetRef", "name") if is_pod else "",
        INCARNATION: text(endpoint, "targetRef", "uid"),
        "kubernetes/node": text(endpoint, "nodeName"),
    }


def _port(piece: Object, wanted: int | str | None, defaults: Defaults) -> tuple[int, str]:
    """Number and scheme of the port that is ``wanted``. Raises PassedOver."""
    ports = list(_tcp_ports(piece))
    if wanted is None and len(ports) == 1:
        return _described(ports[0], defaults)
    for each in ports:
        if (wanted or USUAL_NAME) in (text(each, "name"), number(each, "port")):
            return _described(each, defaults)
    if isinstance(wanted, int):
        return wanted, defaults.scheme
    named = f"no port named {wanted or USUAL_NAME!r}"
    raise UnusableObject(named if wanted else f"it has {len(ports)} ports, and {named}: set which one it is")


def _tcp_ports(piece: Object) -> Iterator[Object]:
    return (
        each
        for each in parts(piece, "ports")
        if number(each, "port") and text(each, "protocol") in ("", "TCP")
    )


def _described(port: Object, defaults: Defaults) -> tuple[int, str]:
    protocol = text(port, "appProtocol").lower()
    return number(port, "port") or 0, protocol if protocol in SCHEMES else defaults.scheme


ENDPOINT_SLICES = Resource("endpointslices", "/apis/discovery.k8s.io/v1", read_slice)
