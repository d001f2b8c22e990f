"""Pods: which are workers, at which URL, and what their annotations add."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.stores.kubernetes.pods import PODS, read_pod
from gateway.stores.kubernetes.reading import Defaults
from gateway.stores.record import WorkerRecord
from tests.stores.kubernetes.things import Object, pod

HTTP = {"name": "http", "containerPort": 8000, "protocol": "TCP"}
METRICS = {"name": "metrics", "containerPort": 9090}
DNS = {"name": "dns", "containerPort": 53, "protocol": "UDP"}


def urls(object_: Object, **defaults: Any) -> list[str]:
    return [candidate.record.url for candidate in read_pod(object_, Defaults(**defaults)).candidates]


def problem(object_: Object, **defaults: Any) -> str:
    reading = read_pod(object_, Defaults(**defaults))
    assert reading.candidates == ()
    return reading.problem


def test_path_is_that_of_the_core_api() -> None:
    assert PODS.target("blue") == "/api/v1/namespaces/blue/pods"
    assert PODS.target(None) == "/api/v1/pods"


def test_record_says_what_the_annotations_say_and_where_the_pod_is() -> None:
    object_ = pod("a", uid="u1", model="m", format="sglang", priority="2", held="true", labels="gpu=h100")
    (candidate,) = read_pod(object_, Defaults()).candidates
    where = {"namespace": "default", "pod": "a", "uid": "u1", "node": "node-1"}
    assert candidate.record == WorkerRecord(
        "http://10.0.0.1:30000",
        format="sglang",
        model="m",
        priority=2,
        cordoned=True,
        labels={"gpu": "h100", **{f"kubernetes/{name}": value for name, value in where.items()}},
    )


@pytest.mark.parametrize(
    ("ip", "host"), [("10.0.0.1", "10.0.0.1"), ("fd00::1", "[fd00::1]"), ("fd00:0:0::1", "[fd00::1]")]
)
def test_address_of_either_family(ip: str, host: str) -> None:
    assert urls(pod("a", ip)) == [f"http://{host}:30000"]


@pytest.mark.parametrize(
    ("ports", "defaults", "url"),
    [
        ([METRICS, HTTP], {}, "http://10.0.0.1:8000"),
        ([METRICS], {}, "http://10.0.0.1:9090"),
        ([DNS, METRICS], {}, "http://10.0.0.1:9090"),
        ([METRICS, HTTP], {"port": "metrics"}, "http://10.0.0.1:9090"),
        ([], {"port": 1234}, "http://10.0.0.1:1234"),
        ([HTTP], {"port": 1234, "scheme": "https"}, "https://10.0.0.1:1234"),
    ],
)
def test_port_is_the_one_set_or_the_only_one_or_the_one_named_http(
    ports: list[Object], defaults: dict[str, Any], url: str
) -> None:
    assert urls(pod("a", ports=ports), **defaults) == [url]


def test_annotation_wins_over_the_setting_and_may_name_several_engines() -> None:
    object_ = pod("a", ports=[HTTP, METRICS], port="metrics", scheme="https")
    assert urls(object_, port=1234) == ["https://10.0.0.1:9090"]
    several = pod("a", port="30000,30001,30000")
    assert urls(several) == ["http://10.0.0.1:30000", "http://10.0.0.1:30001"]
    assert len({candidate.identity for candidate in read_pod(several, Defaults()).candidates}) == 2


def test_port_of_a_sidecar_can_be_named() -> None:
    object_ = pod("a", ports=[METRICS])
    object_["spec"]["initContainers"] = [
        {"name": "proxy", "restartPolicy": "Always", "ports": [HTTP]},
        {"name": "setup", "ports": [{"name": "setup", "containerPort": 1}]},
    ]
    assert urls(object_) == ["http://10.0.0.1:8000"]
    assert "'setup'" in problem(object_, port="setup")


@pytest.mark.parametrize(
    ("object_", "defaults", "words"),
    [
        *((pod("a", ip), {}, "address") for ip in ("", "engine-0", "10.0.0.256", "fe80::1%eth0")),
        (pod("a", ports=[]), {}, "declare no TCP port"),
        (pod("a", ports=[DNS]), {}, "declare no TCP port"),
        (
            pod("a", ports=[METRICS, {"name": "b", "containerPort": 5}]),
            {},
            "several ports, none named 'http'",
        ),
        (pod("a", ports=[HTTP]), {"port": "api"}, "no container has a TCP port named 'api'"),
        # What no record can hold.
        (pod("a", model="m" * 300), {}, "ignored: "),
        (pod("a", bootstrap_port="70000"), {}, "ignored: "),
    ],
)
def test_pod_that_cannot_be_used_is_ignored_and_reported(
    object_: Object, defaults: dict[str, Any], words: str
) -> None:
    assert words in problem(object_, **defaults)


@pytest.mark.parametrize("state", [{"ready": False}, {"leaving": True}])
def test_problems_of_a_pod_that_is_not_used_are_not_reported(state: dict[str, Any]) -> None:
    assert problem(pod("a", priority="x", **state)) == ""


def test_unknown_annotation_is_reported_and_otherwise_ignored() -> None:
    reading = read_pod(pod("a", modle="x"), Defaults())
    assert len(reading.candidates) == 1
    assert reading.problem == "unknown: tito-gateway/modle"
