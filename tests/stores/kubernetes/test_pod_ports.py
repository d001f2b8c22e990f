"""The port of an engine on the network of its node, which no template can declare."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.stores.kubernetes.pods import read_pod
from gateway.stores.kubernetes.reading import Defaults, ObjectWorkers
from gateway.stores.kubernetes.worker_index import WorkerIndex
from tests.stores.kubernetes.things import Object, pod

INDEX = "apps.kubernetes.io/pod-index"
#: A variable with the value of a label, as a StatefulSet's template has it.
FIELD = {"name": "I", "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}}


def on_node(name: str, *, host: bool = True, labels: Object | None = None, **container: Any) -> Object:
    """A pod on the network of its node, with these members of its container."""
    ports, annotations = container.pop("ports", None), container.pop("annotations", {})
    object_ = pod(name, "10.0.0.7", ports=ports, **annotations)
    object_["metadata"]["labels"] = labels or {}
    object_["spec"]["hostNetwork"] = host
    object_["spec"]["containers"][0] |= container
    return object_


def read(object_: Object, **defaults: Any) -> ObjectWorkers:
    return read_pod(object_, Defaults(**defaults))


def ports(object_: Object, **defaults: Any) -> list[int]:
    return [int(each.record.url.rpartition(":")[2]) for each in read(object_, **defaults).candidates]


@pytest.mark.parametrize("label", [INDEX, "leaderworkerset.sigs.k8s.io/worker-index"])
def test_pods_of_one_template_differ_by_their_index(label: str) -> None:
    """Whether the base port is declared, set or annotated."""
    pods = [on_node(f"e-{index}", labels={label: str(index)}, args=["--port", "1"]) for index in (0, 2)]
    assert [ports(each, port_label=label) for each in pods] == [[30000], [30002]]
    assert [ports(each, port_label=label, port=8000) for each in pods] == [[8000], [8002]]
    annotated = on_node("e-1", labels={label: "1"}, annotations={"port": "9000"})
    assert ports(annotated, port_label=label) == [9001]
    index = WorkerIndex()
    index.replace({("d", str(n)): read(each, port_label=label) for n, each in enumerate(pods)})
    assert list(index.records) == ["http://10.0.0.7:30000", "http://10.0.0.7:30002"]


@pytest.mark.parametrize("labels", [{}, {INDEX: "one"}, {INDEX: "-1"}, {INDEX: "36000"}, {INDEX: "0" * 9}])
def test_pod_without_a_usable_index_is_ignored_and_reported(labels: Object) -> None:
    found = read(on_node("e", labels=labels), port_label=INDEX)
    assert (found.candidates, INDEX in found.problem) == ((), True)


@pytest.mark.parametrize(
    "container",
    [
        {"args": ["serve", "--port", "30001"]},
        {"args": ["--port=30001"]},
        {"command": ["sh", "-c", "exec python -m server --port 1 --port 30001 --host 0.0.0.0"]},
        {"env": [{"name": "PORT", "value": "30001"}]},
        {"env": [{"name": "P", "value": "30001"}], "args": ["--port=$(P)"]},
        {"env": [FIELD], "args": ["--port", "3000$(I)"]},
        {"env": [FIELD], "command": ["sh", "-c", "server --port 3000${I}"]},
    ],
)
def test_port_in_the_arguments_or_environment_is_that_of_the_engine_on_its_node(
    container: dict[str, Any],
) -> None:
    """Not in a network of its own, where the declared one is as good, nor against what is set for the pod."""
    labels = {INDEX: "1"}
    assert ports(on_node("e", labels=labels, **container)) == [30001]
    assert ports(on_node("e", labels=labels, ports=[], **container)) == [30001]
    assert ports(on_node("e", labels=labels, ports=[], host=False, **container)) == [30001]
    assert ports(on_node("e", labels=labels, host=False, **container)) == [30000]
    assert ports(on_node("e", labels=labels, **container), port=8000) == [8000]
    assert ports(on_node("e", labels=labels, annotations={"port": "8001"}, **container)) == [8001]


@pytest.mark.parametrize(
    "container",
    [
        {"args": ["--port"]},
        {"args": ["--port", "$((30000 + I))"]},
        {"args": ["--port=http", 7, None], "env": "x"},
        {"args": ["--ports=1", "--port=70000"], "env": [{"name": "PORT", "valueFrom": {"secretKeyRef": {}}}]},
    ],
)
def test_port_that_is_not_known_is_the_declared_one(container: dict[str, Any]) -> None:
    assert ports(on_node("e", **container)) == [30000]


def test_only_the_container_that_declares_the_port_is_asked_for_it() -> None:
    object_ = on_node("e")
    object_["spec"]["containers"].insert(0, {"name": "exporter", "args": ["--port", "9100"]})
    assert ports(object_) == [30000]
