"""The index of workers: one record per server, one server per URL, from all objects."""

from __future__ import annotations

import pytest

from gateway.stores.base import Gone, Put
from gateway.stores.kubernetes.reading import Candidate, ObjectWorkers
from gateway.stores.kubernetes.worker_index import WorkerIndex, merge
from gateway.stores.record import WorkerRecord

A, B = ("default", "a"), ("default", "b")


def candidate(
    name: str, owner: str, *, preference: int = 0, created: str = "1", model: str | None = None
) -> Candidate:
    return Candidate(WorkerRecord(f"http://{name}:1", model=model), (owner, "1"), preference, created)


def reading(*candidates: Candidate) -> ObjectWorkers:
    return ObjectWorkers(candidates)


def test_update_of_an_object_returns_the_changes() -> None:
    """Additions come first, so that a fleet that is replaced is never empty."""
    index = WorkerIndex()
    index.replace({A: reading(candidate("a", "u1"), candidate("b", "u2"))})
    changes = index.update(A, reading(candidate("b", "u2"), candidate("c", "u3")))
    assert changes == [Put(WorkerRecord("http://c:1")), Gone("http://a:1")]
    changed = candidate("b", "u2", model="m")
    assert index.update(A, reading(changed)) == [Put(changed.record), Gone("http://c:1")]
    assert index.update(A, None) == [Gone("http://b:1")]
    assert index.update(A, None) == []


def test_server_in_two_objects_is_gone_with_the_last_of_them() -> None:
    """Kubernetes moves an endpoint from one slice to another in two updates."""
    index = WorkerIndex()
    index.update(A, reading(candidate("a", "u1")))
    assert index.update(B, reading(candidate("a", "u1"))) == []
    assert index.update(A, reading()) == []
    assert index.update(B, reading()) == [Gone("http://a:1")]


def test_server_with_addresses_of_two_families_is_one_worker() -> None:
    """With the preferred address, whichever comes first, and the other once that is gone."""
    four, six = candidate("10.0.0.1", "u1"), candidate("[fd00::1]", "u1", preference=1, created="9")
    assert list(merge([four, six])) == list(merge([six, four])) == [four.record.url]
    index = WorkerIndex()
    index.replace({A: reading(four), B: reading(six)})
    assert index.update(A, None) == [Put(six.record), Gone(four.record.url)]


def test_url_belongs_to_the_younger_of_two_servers() -> None:
    old, young = candidate("a", "u1", created="1"), candidate("a", "u2", created="2", model="young")
    assert merge([old, young]) == merge([young, old]) == {"http://a:1": young.record}


def test_log_names_both_servers_at_one_url_once(caplog: pytest.LogCaptureFixture) -> None:
    """Pods on the network of one node, for example; again only after it was over."""

    def at(url: str, name: str, created: str) -> ObjectWorkers:
        labels = {"kubernetes/namespace": "d", "kubernetes/pod": name}
        return reading(Candidate(WorkerRecord(url, labels=labels), (name, "1"), 0, created))

    index, line = WorkerIndex(), "d/e-0 and d/e-1 are both at http://n:1, so only d/e-1 is a worker"
    index.replace({A: at("http://n:1", "e-0", "1"), B: at("http://n:1", "e-1", "2")})
    index.update(("d", "other"), at("http://o:1", "other", "1"))
    assert caplog.text.count(line) == 1
    index.update(B, at("http://n:2", "e-1", "2"))
    index.update(B, at("http://n:1", "e-1", "2"))
    assert caplog.text.count(line) == 2
    assert list(index.records) == ["http://n:1", "http://o:1"]


def test_ports_of_one_server_are_separate_workers() -> None:
    two = [Candidate(WorkerRecord(f"http://a:{port}"), ("u1", str(port)), 0, "1") for port in (1, 2)]
    assert list(merge(two)) == ["http://a:1", "http://a:2"]
