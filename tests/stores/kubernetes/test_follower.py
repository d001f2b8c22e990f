"""Following the API server: the workers are those of its objects, or the last known ones in an outage."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme

from gateway.stores.backoff import BackoffDelays
from gateway.stores.base import Gone, Put, ReadOnlyStore, Reset
from gateway.stores.kubernetes import follower
from gateway.stores.kubernetes.access import ApiServerAccess
from gateway.stores.kubernetes.slices import ENDPOINT_SLICES
from gateway.stores.record import WorkerRecord
from tests.stores.kubernetes.cluster import Status
from tests.stores.kubernetes.conftest import QUICK, Site, stays
from tests.stores.kubernetes.things import Object, endpoint, pod, slice_
from tests.support.gateway import until

pytestmark = pytest.mark.virtual_time

ONE, TWO, THREE = (f"http://10.0.0.{number}:30000" for number in (1, 2, 3))


def delayed(**delays: float) -> Any:
    return replace(QUICK, delays=BackoffDelays(**delays))


def busy(status: int, **headers: str) -> tuple[Status, dict[str, str]]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Status(status, "Busy", "too many requests, please try again later"), named


def put_pods(site: Site, *numbers: int) -> None:
    """The pod "p1" is at ONE, and so on."""
    for number in numbers:
        site.cluster.put("pods", pod(f"p{number}", f"10.0.0.{number}"))


async def restart(site: Site) -> None:
    await site.server.stop()
    await site.server.start()


async def test_changes_are_yielded_in_order(site: Site) -> None:
    """An update of a pod's status is no change."""
    reader = await site.follow()
    assert reader.changes == [Reset({})]
    put_pods(site, 1, 1)
    site.cluster.put("pods", pod("p2", "10.0.0.2", ready=False))
    put_pods(site, 3, 2)
    site.cluster.delete("pods", "p1")
    await reader.knows(TWO, THREE)
    reported = [change.record.url if isinstance(change, Put) else change for change in reader.changes[1:]]
    assert reported == [ONE, THREE, TWO, Gone(ONE)]


async def test_nothing_can_be_written_and_closing_ends_every_watch(site: Site) -> None:
    """The error names Kubernetes, and nothing is sent."""
    store = site.store()
    assert not store.writable and not store.keeps_cordons
    for write in (store.put(WorkerRecord(ONE), ttl=10), store.delete(ONE)):
        with pytest.raises(ReadOnlyStore, match="Kubernetes"):
            await write
    assert not site.server.asked
    readers = [await site.follow(), await site.follow()]
    await until(lambda: site.server.watching == 2)
    for reader in readers:
        await reader.store.close()
    await until(lambda: all(reader.ended for reader in readers))
    put_pods(site, 1)
    await until(lambda: site.server.watching == 0)
    assert [reader.changes for reader in readers] == [[Reset({})]] * 2


async def test_one_namespace_or_all(site: Site) -> None:
    site.cluster.put("pods", pod("a", "10.0.0.1", namespace="blue"))
    site.cluster.put("pods", pod("a", "10.0.0.2", namespace="red"))
    blue, every = await site.follow(namespace="blue"), await site.follow(namespace=None)
    assert (blue.urls, every.urls) == ({ONE}, {ONE, TWO})
    site.cluster.delete("pods", "a", "red")
    await every.knows(ONE)
    assert site.server.lists[0].path == "/api/v1/namespaces/blue/pods"


async def test_late_end_of_a_pod_does_not_remove_the_new_pod_at_its_address(site: Site) -> None:
    site.cluster.put("pods", pod("a", uid="old"))
    reader = await site.follow()
    site.cluster.put("pods", pod("a", uid="old", leaving=True))
    site.cluster.put("pods", pod("b", uid="new"))
    site.cluster.delete("pods", "a")
    put_pods(site, 3)
    await reader.knows(ONE, THREE)
    assert [type(change) for change in reader.changes[1:]] == [Gone, Put, Put]
    assert reader.records[ONE].labels["kubernetes/uid"] == "new"


async def test_large_fleet_is_listed_in_pages(site: Site) -> None:
    """512 pods are one Reset, from pages of one snapshot."""
    for number in range(512):
        site.cluster.put("pods", pod(f"p{number:03}", f"10.1.{number // 256}.{number % 256}"))
    reader = await site.follow()
    assert len(reader.urls) == 512 and reader.resets == 1
    assert [each.query["limit"] for each in site.server.lists] == [str(follower.PAGE_SIZE)] * 6


async def test_list_whose_snapshot_expires_is_read_without_pages(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 410 between two pages is not a failure, and no page of the incomplete list is used."""
    monkeypatch.setattr(follower, "PAGE_SIZE", 2)
    put_pods(site, 1, 2, 3)
    list_pods = site.cluster.page

    def forgetful(kind: str, namespace: str | None, query: dict[str, str]) -> Object:
        page = list_pods(kind, namespace, query)
        if len(site.server.lists) == 1:
            site.cluster.compact()
            site.cluster.delete("pods", "p1")
        return page

    monkeypatch.setattr(site.cluster, "page", forgetful)
    reader = await site.follow()
    assert reader.urls == {TWO, THREE} and reader.resets == 1
    assert [each.query.get("limit") for each in site.server.lists] == ["2", "2", None]


async def test_watch_continues_from_the_last_resource_version(site: Site) -> None:
    """When the server closes a watch, the next one begins without a list.

    The server is asked to close it after a random time, so that gateways do not reconnect at the same time.
    """
    site.server.watch_limit = 0.02
    reader = await site.follow()
    for number in (1, 2, 3):
        put_pods(site, number)
        await until(lambda count=number: len(reader.urls) == count)  # type: ignore[misc]
    await until(lambda: len(site.server.watches) > 4)
    assert reader.resets == len(site.server.lists) == 1
    assert [isinstance(change, Put) for change in reader.changes[1:]] == [True] * 3
    limits = [int(each.query["timeoutSeconds"]) for each in site.server.watches]
    assert all(QUICK.watch / 2 <= limit <= QUICK.watch for limit in limits)


async def test_bookmark_avoids_a_new_list(site: Site) -> None:
    """It updates the resourceVersion where no object of the selection changes for long."""
    reader = await site.follow()
    for _ in range(5):
        site.cluster.put("endpointslices", slice_("x"))
    site.server.bookmark()
    site.server.emit({"type": "ERROR", "object": Status(500, "InternalError", "leader changed").body})
    await until(lambda: len(site.server.watches) == 2 and reader.store.healthy)
    assert site.server.watches[-1].query["resourceVersion"] == str(site.cluster.version)
    site.cluster.compact()
    await restart(site)
    await until(lambda: site.server.watching == 1)
    assert reader.resets == 1


async def test_expired_resource_version_leads_to_a_list(site: Site) -> None:
    """410 as a status, or a backup that was restored: a Reset has what was added and removed meanwhile."""
    put_pods(site, 1, 2)
    reader = await site.follow()
    await site.server.stop()
    site.cluster.delete("pods", "p1")
    put_pods(site, 3)
    site.cluster.compact()
    await site.server.start()
    await reader.knows(TWO, THREE)
    assert [type(change) for change in reader.changes] == [Reset, Reset]
    await site.server.stop()
    site.cluster.restore(1003)
    await site.server.start()
    await until(lambda: reader.resets == 3)
    put_pods(site, 1)
    await reader.knows(ONE, TWO, THREE)


async def test_error_event_with_code_410_leads_to_a_list(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """The list follows without a delay, and nothing is logged; a useful watch resets the backoff."""
    site.server.faults = [busy(503), busy(503)]
    reader = await site.follow(timing=delayed(first=10))
    put_pods(site, 1)
    await reader.knows(ONE)
    caplog.clear()
    site.server.emit({"type": "ERROR", "object": Status(410, "Expired", "too old resource version").body})
    await until(lambda: reader.resets == 2 and len(site.server.watches) == 2)
    assert reader.store.healthy and not caplog.records


async def test_watch_that_ends_at_once_is_not_repeated_without_a_delay(site: Site) -> None:
    """Nor is one that is answered 410 each time."""
    site.server.watch_limit = 0
    store = site.read(timing=delayed(first=30)).store
    await until(lambda: "as soon as it began" in store.reason)
    await stays(lambda: len(site.server.asked) == 2)
    site.server.garbage = b'{"type":"ERROR","object":{"code":410,"reason":"Expired"}}\n'
    reader = site.read(timing=delayed(first=30, longest=30))
    await until(lambda: len(site.server.lists) == 3)
    await stays(lambda: len(site.server.lists) == 3 and reader.resets <= 2)


async def test_fleet_stays_as_it_is_known_during_an_outage(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """One log line reports it; the changes of that time follow afterwards, without a new list."""
    caplog.set_level(logging.INFO)
    put_pods(site, 1)
    reader = await site.follow()
    await site.server.stop()
    await until(lambda: not reader.store.healthy)
    put_pods(site, 2)
    await stays(lambda: reader.urls == {ONE} and len(reader.changes) == 1)
    assert "cannot be reached" in reader.store.reason
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) <= 3
    site.server.faults = [busy(503), busy(500), busy(429)]
    await site.server.start()
    await reader.knows(ONE, TWO)
    await until(lambda: reader.store.healthy)
    assert not site.server.faults and reader.store.reason == ""
    assert reader.resets == len(site.server.lists) == 1


async def test_dead_connection_is_closed_once_its_watch_or_an_answer_is_overdue(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """No change is missed."""
    reader = await site.follow(timing=replace(QUICK, watch=0.02, slack=0.1, answer=0.1))
    site.server.silent = True
    put_pods(site, 1)
    await until(lambda: "stopped responding" in caplog.text)
    await until(lambda: "did not answer within 0.1 s" in reader.store.reason)
    site.server.silent = False
    await reader.knows(ONE)
    assert reader.resets == 1


@pytest.mark.parametrize("garbage", [b"not json\n", b"[]\n", b'{"type": "ERROR"}\n', b"\xff\n"])
async def test_watch_with_invalid_events_is_repeated(site: Site, garbage: bytes) -> None:
    """No change follows from it, and the resourceVersion is kept."""
    site.server.garbage = garbage
    reader = site.read()
    await until(lambda: len(site.server.watches) > 2)
    site.server.garbage = b""
    put_pods(site, 1)
    await reader.knows(ONE)


async def test_retry_after_of_a_busy_server_is_obeyed(site: Site) -> None:
    """However short the own delays are."""
    site.server.faults = [busy(429, retry_after="1")]
    loop = asyncio.get_running_loop()
    began = loop.time()
    store = site.read().store
    await until(lambda: "429" in store.reason)
    await until(lambda: store.healthy)
    assert loop.time() - began >= 1


async def test_rotated_token_is_read_again(site: Site) -> None:
    """For each new watch; one that runs is not interrupted."""
    site.server.watch_limit = 0.05
    reader = await site.follow()
    site.server.token = "second-token"
    await until(lambda: "401" in reader.store.reason)
    site.token.write_text("second-token\n")
    put_pods(site, 1)
    await reader.knows(ONE)
    assert {each.token for each in site.server.asked} == {"first-token", "second-token"}
    assert reader.resets == 1


async def test_missing_right_to_list_is_reported_and_retried_slowly(site: Site) -> None:
    """403: the server's message is the reason."""
    site.server.verbs = set()
    reader = site.read()
    await until(lambda: "403" in reader.store.reason)
    user = "system:serviceaccount:default:tito-gateway"
    assert f'User "{user}" cannot list resource "pods"' in reader.store.reason
    await stays(lambda: len(site.server.asked) == 1 and reader.changes == [])


async def test_without_the_right_to_watch_the_fleet_is_listed_slowly(site: Site) -> None:
    """The store is unhealthy, and its reason names the missing right."""
    site.server.verbs = {"list"}
    put_pods(site, 1)
    reader = site.read(timing=delayed(slow=0.02))
    await reader.knows(ONE)
    await until(lambda: "cannot watch" in reader.store.reason)
    put_pods(site, 2)
    await reader.knows(ONE, TWO)
    assert not reader.store.healthy
    site.server.verbs = {"list", "watch"}
    await until(lambda: reader.store.healthy)


async def test_server_of_another_authority_is_not_trusted(site: Site, tmp_path: Path) -> None:
    """It gets no token. The file of authorities is read again."""
    other, good = tmp_path / "other.crt", site.certificates.read_bytes()
    store = site.read(access=ApiServerAccess(site.server.url, site.token, other)).store
    await until(lambda: f"CA file {other}" in store.reason)
    trustme.CA().cert_pem.write_to_path(str(other))
    await until(lambda: "certificate" in store.reason.lower())
    assert not site.server.asked
    other.write_bytes(good)
    await until(lambda: store.healthy)


async def test_invalid_annotation_is_logged_once_and_affects_no_other_pod(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.cluster.put("pods", bad := pod("a", priority="high"))
    put_pods(site, 2)
    reader = await site.follow()
    assert reader.urls == {TWO}
    for _ in range(3):
        site.cluster.put("pods", bad)
    put_pods(site, 3)
    await reader.knows(TWO, THREE)
    reported = [text for text in caplog.messages if "tito-gateway/priority" in text]
    assert reported == ["kubernetes: default/a: ignored: tito-gateway/priority: 'high' is not an integer"]
    site.cluster.put("pods", pod("a", priority="7"))
    await reader.knows(ONE, TWO, THREE)
    assert reader.records[ONE].priority == 7


async def test_slices_of_a_service_are_one_fleet(site: Site) -> None:
    """Endpoints of several slices and both IP families are merged."""
    kept = endpoint("10.0.0.1", "a", ready=True, serving=True, terminating=False)
    six = endpoint("fd00::1", "a"), endpoint("fd00::9", "d")
    for each in (
        slice_("s1", kept, endpoint("10.0.0.2", "b", ready=True)),
        slice_("s2", endpoint("10.0.0.3", "c")),
        slice_("s6", *six, family="IPv6"),
        slice_("other", endpoint("10.9.9.9"), labels={"kubernetes.io/service-name": "x"}),
    ):
        site.cluster.put("endpointslices", each)
    reader = await site.follow(resource=ENDPOINT_SLICES, selector="kubernetes.io/service-name=engines")
    assert reader.urls == {ONE, TWO, THREE, "http://[fd00::9]:30000"}
    leaving = endpoint("10.0.0.2", "b", ready=False, serving=True, terminating=True)
    site.cluster.put("endpointslices", slice_("s1", kept, leaving))
    site.cluster.delete("endpointslices", "s2")
    await reader.knows(ONE, "http://[fd00::9]:30000")
    assert site.server.lists[0].path == "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
