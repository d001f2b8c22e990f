"""Members: one record per server, one server per URL, whoever speaks of them."""

from __future__ import annotations

from gateway.stores.base import Gone, Put
from gateway.stores.kubernetes.reading import Candidate, ObjectWorkers
from gateway.stores.kubernetes.worker_index import WorkerIndex, merge
from gateway.stores.record import WorkerRecord

A, B = ("default", "a"), ("default", "b")


def candidate(
    url: str, owner: str, *, preference: int = 0, created: str = "1", model: str | None = None
) -> Candidate:
    return Candidate(WorkerRecord(url, model=model), (owner, "80"), preference, created)


def reading(*candidates: Candidate) -> ObjectWorkers:
    return ObjectWorkers(candidates)


def test_change_of_an_object_is_the_difference_it_makes() -> None:
    """Who joins comes before who leaves, so that a fleet which moves is never empty."""
    members = WorkerIndex()
    members.replace({A: reading(candidate("http://a:1", "u1"), candidate("http://b:1", "u2"))})
    changes = members.update(A, reading(candidate("http://b:1", "u2"), candidate("http://c:1", "u3")))
    assert changes == [Put(WorkerRecord("http://c:1")), Gone("http://a:1")]
    assert members.update(A, None) == [Gone("http://b:1"), Gone("http://c:1")]
    assert members.update(A, None) == []


def test_record_that_changed_is_put_again() -> None:
    members = WorkerIndex()
    members.replace({A: reading(candidate("http://a:1", "u1"))})
    changed = candidate("http://a:1", "u1", model="m")
    assert members.update(A, reading(changed)) == [Put(changed.record)]


def test_server_in_two_objects_leaves_with_the_last_of_them() -> None:
    """A slice gives up an endpoint before, or after, another one takes it."""
    members = WorkerIndex()
    members.update(A, reading(candidate("http://a:1", "u1")))
    assert members.update(B, reading(candidate("http://a:1", "u1"))) == []
    assert members.update(A, reading()) == []
    assert members.update(B, reading()) == [Gone("http://a:1")]


def test_server_with_addresses_of_two_families_is_one_worker() -> None:
    """The better liked one, whichever came first, and the other once that is gone."""
    four, six = (
        candidate("http://10.0.0.1:80", "u1"),
        candidate("http://[fd00::1]:80", "u1", preference=1, created="9"),
    )
    assert list(merge([four, six])) == list(merge([six, four])) == [four.record.url]
    members = WorkerIndex()
    members.replace({A: reading(four), B: reading(six)})
    assert members.update(A, None) == [Put(six.record), Gone(four.record.url)]


def test_url_belongs_to_the_younger_of_two_servers() -> None:
    old, young = (
        candidate("http://a:1", "u1", created="1"),
        candidate("http://a:1", "u2", created="2", model="young"),
    )
    assert merge([old, young]) == merge([young, old]) == {"http://a:1": young.record}


def test_ports_of_one_server_are_workers_of_their_own() -> None:
    two = [Candidate(WorkerRecord(f"http://a:{port}"), ("u1", str(port)), 0, "1") for port in (1, 2)]
    assert list(merge(two)) == ["http://a:1", "http://a:2"]
