"""EndpointSlices: which endpoints are workers, and at which URL."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.stores.kubernetes.reading import Defaults
from gateway.stores.kubernetes.slices import read_slice
from tests.stores.kubernetes.things import Object, endpoint, slice_

HTTP = {"name": "http", "port": 8000, "protocol": "TCP"}
GRPC = {"name": "grpc", "port": 5000}
SECURE = {"name": "web", "port": 8443, "appProtocol": "https"}
DNS = {"name": "dns", "port": 53, "protocol": "UDP"}
ENDPOINT = endpoint("10.0.0.1", "a")


def urls(object_: Object, **defaults: Any) -> list[str]:
    return [candidate.record.url for candidate in read_slice(object_, Defaults(**defaults)).candidates]


@pytest.mark.parametrize(
    ("conditions", "member"),
    [
        ({}, True),
        ({"ready": True}, True),
        ({"ready": False}, False),
        ({"ready": False, "serving": True, "terminating": True}, False),
        ({"ready": True, "serving": True, "terminating": False}, True),
        # A Service with publishNotReadyAddresses: what is on its way out leaves nevertheless.
        ({"ready": True, "serving": False}, True),
        ({"ready": True, "serving": True, "terminating": True}, False),
    ],
)
def test_conditions_of_an_endpoint(conditions: dict[str, bool], member: bool) -> None:
    assert bool(urls(slice_("s", endpoint("10.0.0.1", "a", **conditions)))) is member


def test_first_of_an_endpoints_addresses_is_used() -> None:
    """They all lead to the same server."""
    object_ = endpoint("fd00::1")
    object_["addresses"].append("fd00::2")
    assert urls(slice_("s", object_, family="IPv6")) == ["http://[fd00::1]:30000"]


@pytest.mark.parametrize(
    ("ports", "defaults", "url"),
    [
        ([GRPC, HTTP], {}, "http://10.0.0.1:8000"),
        ([GRPC], {}, "http://10.0.0.1:5000"),
        ([DNS, GRPC], {}, "http://10.0.0.1:5000"),
        ([SECURE], {}, "https://10.0.0.1:8443"),
        ([SECURE, HTTP], {"port": 8443}, "https://10.0.0.1:8443"),
        ([SECURE, HTTP], {"port": "web"}, "https://10.0.0.1:8443"),
        ([], {"port": 1234, "scheme": "https"}, "https://10.0.0.1:1234"),
    ],
)
def test_port_and_scheme(ports: list[Object], defaults: dict[str, Any], url: str) -> None:
    assert urls(slice_("s", ENDPOINT, ports=ports), **defaults) == [url]


@pytest.mark.parametrize(
    ("object_", "defaults", "words"),
    [
        (slice_("s", ENDPOINT, ports=[]), {}, "no port named"),
        (slice_("s", ENDPOINT, ports=[GRPC, SECURE]), {}, "no port named"),
        (slice_("s", ENDPOINT, ports=[HTTP]), {"port": "api"}, "no port named"),
        (slice_("s", ENDPOINT, ports=[DNS]), {}, "no port named"),
        (slice_("s", endpoint("engine.example"), family="FQDN"), {}, "'FQDN'"),
        (slice_("s", ENDPOINT, labels={"tito-gateway/priority": "x"}), {}, "tito-gateway/priority"),
    ],
)
def test_slice_that_cannot_be_used_is_ignored_and_reported(
    object_: Object, defaults: dict[str, Any], words: str
) -> None:
    reading = read_slice(object_, Defaults(**defaults))
    assert reading.candidates == () and words in reading.problem


def test_labels_of_the_service_speak_for_its_workers_and_annotations_are_heard_first() -> None:
    labels = {"tito-gateway/format": "sglang", "tito-gateway/model": "short"}
    object_ = slice_("s", ENDPOINT, labels=labels, annotations={"tito-gateway/model": "org/long"})
    (candidate,) = read_slice(object_, Defaults()).candidates
    assert (candidate.record.format, candidate.record.model) == ("sglang", "org/long")
    assert candidate.record.labels == {
        "kubernetes/namespace": "default",
        "kubernetes/service": "engines",
        "kubernetes/pod": "a",
        "kubernetes/uid": "uid-default-a",
        "kubernetes/node": "node-1",
    }


def test_endpoint_without_an_address_affects_no_other() -> None:
    broken = endpoint("10.0.0.9")
    broken["addresses"] = []
    object_ = slice_("s", broken, ENDPOINT)
    assert urls(object_) == ["http://10.0.0.1:30000"]
    assert "an endpoint was ignored" in read_slice(object_, Defaults()).problem
