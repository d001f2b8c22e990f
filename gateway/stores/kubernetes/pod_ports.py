"""The port of the engine in a pod.

Owns: which of a pod's ports is the one, and what its containers are given as theirs. Must never enter: the
address, readiness, annotations.

A template gives all of its pods the same declared ports. Where these pods share the network of their node,
each engine needs another port: its container has that in its arguments or environment, or it is counted
from a base port by the index that a controller writes to a label of each pod.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gateway.stores.kubernetes.annotations import port_of
from gateway.stores.kubernetes.objects import Object, flag, number, part, parts, strings, text, texts
from gateway.stores.kubernetes.reading import UnusableObject

#: The name of the port that is used if a pod has several and none is configured.
DEFAULT_PORT_NAME = "http"
#: The variable that tells a server its port.
_VARIABLE = "PORT"
#: A reference to a variable: as Kubernetes expands it, and as a shell does.
_REFERENCE = re.compile(r"\$\((\w+)\)|\$\{(\w+)\}|\$(\w+)")
#: A field of the pod in a variable: one of its labels or annotations.
_FIELD = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


@dataclass(frozen=True, slots=True)
class _Declared:
    """A TCP port that a container declares."""

    container: Object
    name: str
    port: int


def engine_port(pod: Object, wanted: int | str | None, index_label: str | None = None) -> int:
    """Return the port that is ``wanted``: a number, a name, or None for the only one or the one named http.

    With an ``index_label`` the number in that label is added. Without one, a pod on the network of its node
    is at the port that its container is given, if none is wanted. Raises UnusableObject.
    """
    if index_label is not None:
        return _counted(pod, wanted if isinstance(wanted, int) else _declared(pod, wanted).port, index_label)
    if isinstance(wanted, int):
        return wanted
    containers = list(_containers(pod))
    if (
        wanted is None
        and not list(_declared_ports(pod))
        and (configured := _configured(pod, containers)) is not None
    ):
        return configured
    declared = _declared(pod, wanted)
    if wanted is None and flag(pod, "spec", "hostNetwork", default=False):
        return _configured(pod, [declared.container]) or declared.port
    return declared.port


def _counted(pod: Object, base: int, label: str) -> int:
    index = texts(pod, "metadata", "labels").get(label)
    if index is None:
        raise UnusableObject(f"it has no label {label}, which has to hold its index")
    if not re.fullmatch("[0-9]{1,5}", index) or base + int(index) > 65535:
        raise UnusableObject(
            f"its label {label}, {index[:80]!r}, is no index that can be added to port {base}"
        )
    return base + int(index)


def _declared(pod: Object, wanted: str | None) -> _Declared:
    """Return the port with the name ``wanted``, or None: the only one, or the one named http."""
    ports = list(_declared_ports(pod))
    if wanted is None and len({each.port for each in ports}) == 1:
        return ports[0]
    name = wanted or DEFAULT_PORT_NAME
    for each in ports:
        if each.name == name:
            return each
    if wanted is not None:
        raise UnusableObject(f"no container has a TCP port named {wanted!r}")
    if not ports:
        raise UnusableObject("its containers declare no TCP port, so the port must be set")
    raise UnusableObject(f"it has several ports, none named {DEFAULT_PORT_NAME!r}, so the port must be set")


def _containers(pod: Object) -> Iterator[Object]:
    """Yield all containers that run beside each other, sidecars last."""
    yield from parts(pod, "spec", "containers")
    for each in parts(pod, "spec", "initContainers"):
        if each.get("restartPolicy") == "Always":
            yield each


def _declared_ports(pod: Object) -> Iterator[_Declared]:
    for container in _containers(pod):
        for each in parts(container, "ports"):
            port = number(each, "containerPort")
            if port and text(each, "protocol") in ("", "TCP"):
                yield _Declared(container, text(each, "name"), port)


def _configured(pod: Object, containers: Iterable[Object]) -> int | None:
    """Return the port in the arguments of one of ``containers``, else in its environment."""
    for container in containers:
        variables = _variables(pod, container)
        for value in (_argument(_words(container, variables)), variables.get(_VARIABLE)):
            if value is not None and isinstance(port := port_of(value), int):
                return port
    return None


def _words(container: Object, variables: Mapping[str, str]) -> list[str]:
    """Return the words of a container's command, which may be one for a shell, with values of variables."""

    def value(found: re.Match[str]) -> str:
        return variables.get(found[1] or found[2] or found[3], found[0])

    arguments = (*strings(container, "command"), *strings(container, "args"))
    return [_REFERENCE.sub(value, word) for argument in arguments for word in argument.split()]


def _argument(words: list[str]) -> str | None:
    """Return the value of the last ``--port``, which is the one that counts."""
    found = None
    for word, following in zip(words, [*words[1:], ""], strict=False):
        if word == "--port":
            found = following
        elif word.startswith("--port="):
            found = word.removeprefix("--port=")
    return found


def _variables(pod: Object, container: Object) -> Mapping[str, str]:
    """Return the environment of a container, as far as it is in the pod itself."""
    variables: dict[str, str] = {}
    for each in parts(container, "env"):
        value = text(each, "value")
        if field := _FIELD.fullmatch(text(each, "valueFrom", "fieldRef", "fieldPath")):
            value = texts(part(pod, "metadata"), field[1]).get(field[2], "")
        variables[text(each, "name")] = value
    return variables
