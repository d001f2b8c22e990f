"""Following the API server: whatever happens to it, the workers are those it knows, or knew last."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from gateway.stores.backoff import BackoffDelays
from gateway.stores.base import Gone, Put, Reset
from gateway.stores.kubernetes import follower
from gateway.stores.kubernetes.access import ApiServerAccess
from gateway.stores.kubernetes.slices import ENDPOINT_SLICES
from tests.stores.kubernetes.cluster import Status
from tests.stores.kubernetes.following import QUICK, Site, stays
from tests.stores.kubernetes.things import endpoint, pod, slice_
from tests.support.gateway import until

pytestmark = pytest.mark.virtual_time

ONE, TWO, THREE = (f"http://10.0.0.{number}:30000" for number in (1, 2, 3))


def busy(status: int, **headers: str) -> tuple[Status, dict[str, str]]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Status(status, "Busy", "too many requests, please try again later"), named


async def test_fleet_that_is_there_comes_first_and_whole(site: Site) -> None:
    """The first change is a Reset with every pod that matches, even when there is none."""
    reader = await site.follow()
    assert reader.changes == [Reset({})]
    site.cluster.put("pods", pod("a", "10.0.0.1"))
    site.cluster.put("pods", pod("b", "10.0.0.2"))
    other = await site.follow()
    assert len(other.changes) == 1
    assert other.urls == {ONE, TWO}


async def test_changes_come_in_order(site: Site) -> None:
    """Each change of a pod is told as it happens, once."""
    reader = await site.follow()
    site.cluster.put("pods", pod("a", "10.0.0.1"))
    site.cluster.put("pods", pod("b", "10.0.0.2", ready=False))
    site.cluster.put("pods", pod("c", "10.0.0.3"))
    site.cluster.put("pods", pod("b", "10.0.0.2"))
    site.cluster.delete("pods", "a")
    await reader.knows(TWO, THREE)
    reported = [change.record.url if isinstance(change, Put) else change for change in reader.changes[1:]]
    assert reported == [ONE, THREE, TWO, Gone(ONE)]


async def test_heartbeat_of_a_pod_is_no_change(site: Site) -> None:
    """A pod that is written again, with nothing new for us, is not told again."""
    reader = await site.follow()
    site.cluster.put("pods", object_ := pod("a"))
    object_["status"]["hostIP"] = "10.1.1.1"
    site.cluster.put("pods", object_)
    site.cluster.put("pods", pod("b", "10.0.0.2"))
    await reader.knows(ONE, TWO)
    assert len(reader.changes) == 3


@pytest.mark.parametrize("end", ["ready", "leaving"])
async def test_pod_that_must_not_be_used_any_more_is_gone(site: Site, end: str) -> None:
    """An unready pod leaves, and so does one whose end was asked for, long before it is deleted."""
    site.cluster.put("pods", object_ := pod("a"))
    reader = await site.follow()
    object_ = pod("a", ready=end != "ready", leaving=end == "leaving")
    site.cluster.put("pods", object_)
    await reader.knows()
    assert reader.changes[-1] == Gone(ONE)


async def test_pod_that_is_ready_again_is_back(site: Site) -> None:
    reader = await site.follow()
    site.cluster.put("pods", object_ := pod("a"))
    await reader.knows(ONE)
    for ready, urls in ((False, []), (True, [ONE])):
        object_["status"]["conditions"][1]["status"] = str(ready)
        site.cluster.put("pods", object_)
        await reader.knows(*urls)


async def test_only_pods_of_the_selector_are_workers(site: Site) -> None:
    """The server is asked for the selector; a pod whose labels cease to match is gone."""
    site.cluster.put("pods", pod("a", labels={"app": "engine", "tier": "gpu"}))
    site.cluster.put("pods", pod("b", "10.0.0.2", labels={"app": "web"}))
    reader = await site.follow(site.store(selector="app in (engine, decoder),tier!=cpu"))
    assert reader.urls == {ONE}
    site.cluster.put("pods", pod("a", labels={"app": "engine", "tier": "cpu"}))
    await reader.knows()


async def test_one_namespace_or_all(site: Site) -> None:
    site.cluster.put("pods", pod("a", "10.0.0.1", namespace="blue"))
    site.cluster.put("pods", pod("a", "10.0.0.2", namespace="red"))
    blue = await site.follow(site.store(namespace="blue"))
    every = await site.follow(site.store(namespace=None))
    assert (blue.urls, every.urls) == ({ONE}, {ONE, TWO})
    site.cluster.delete("pods", "a", "red")
    await every.knows(ONE)
    assert site.server.lists[0].path == "/api/v1/namespaces/blue/pods"


async def test_pod_that_takes_over_an_address_is_told_apart(site: Site) -> None:
    """The end of the old pod, which comes late, does not take the new one away."""
    site.cluster.put("pods", pod("a", uid="old"))
    reader = await site.follow()
    site.cluster.put("pods", pod("a", uid="old", leaving=True))
    site.cluster.put("pods", pod("b", uid="new"))
    site.cluster.delete("pods", "a")
    site.cluster.put("pods", pod("c", "10.0.0.3"))
    await reader.knows(ONE, THREE)
    assert [type(change) for change in reader.changes[1:]] == [Gone, Put, Put]
    assert reader.fleet[ONE].labels["kubernetes/uid"] == "new"


async def test_pod_that_was_replaced_in_one_moment_is_another_record(site: Site) -> None:
    """Same name, same address, another UID, and no end seen: the engine behind it is another."""
    site.cluster.put("pods", pod("a", uid="old"))
    reader = await site.follow()
    site.cluster.put("pods", pod("a", uid="new"))
    await until(lambda: reader.fleet[ONE].labels["kubernetes/uid"] == "new")
    assert isinstance(reader.changes[-1], Put)


async def test_large_fleet_is_listed_in_pages(site: Site) -> None:
    """512 pods come as one Reset, from pages of one moment."""
    for number in range(512):
        site.cluster.put("pods", pod(f"p{number:03}", f"10.1.{number // 256}.{number % 256}"))
    reader = await site.follow()
    assert len(reader.fleet) == 512 and reader.resets == 1
    assert len(site.server.lists) == 6
    assert {each.query["limit"] for each in site.server.lists} == {str(follower.PAGE_SIZE)}


async def test_large_fleet_that_comes_at_once_is_seen_at_once(site: Site) -> None:
    reader = await site.follow()
    for number in range(512):
        site.cluster.put("pods", pod(f"p{number:03}", f"10.1.{number // 256}.{number % 256}"))
    await until(lambda: len(reader.fleet) == 512, seconds=5)


async def test_list_whose_first_page_is_forgotten_is_read_in_one_piece(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A 410 between two pages is no failure, and no page of the broken list is believed."""
    monkeypatch.setattr(follower, "PAGE_SIZE", 2)
    for number in (1, 2, 3):
        site.cluster.put("pods", pod(f"p{number}", f"10.0.0.{number}"))
    list_pods = site.cluster.page

    def forgetful(resource: str, namespace: str | None, query: dict[str, str]) -> object:
        page = list_pods(resource, namespace, query)
        if len(site.server.lists) == 1:
            site.cluster.compact()
            site.cluster.delete("pods", "p1")
        return page

    monkeypatch.setattr(site.cluster, "page", forgetful)
    reader = await site.follow()
    assert reader.urls == {TWO, THREE} and reader.resets == 1
    assert [each.query.get("limit") for each in site.server.lists] == ["2", "2", None]


async def test_watch_goes_on_from_where_the_last_one_ended(site: Site) -> None:
    """A watch that the server closes in time is followed by another, with no list between."""
    site.server.watch_limit = 0.02
    reader = await site.follow()
    for number in (1, 2, 3):
        site.cluster.put("pods", pod(f"p{number}", f"10.0.0.{number}"))
        await until(lambda count=number: len(reader.fleet) == count)  # type: ignore[misc]
    await until(lambda: len(site.server.watches) > 4)
    assert reader.resets == len(site.server.lists) == 1
    assert [isinstance(change, Put) for change in reader.changes[1:]] == [True] * 3


async def test_server_is_asked_to_close_the_watch_in_time(site: Site) -> None:
    """Between half of the limit and all of it: replicas of a gateway do not come back in step."""
    await site.follow()
    seconds = int(site.server.watches[0].query["timeoutSeconds"])
    assert QUICK.watch / 2 <= seconds <= QUICK.watch


async def test_bookmark_spares_a_new_list(site: Site) -> None:
    """Where nothing of ours changed for long, a bookmark keeps the place from being forgotten."""
    reader = await site.follow()
    for _ in range(5):
        site.cluster.put("endpointslices", slice_("x"))
    site.server.bookmark()
    site.server.emit({"type": "ERROR", "object": Status(500, "InternalError", "leader changed").body})
    await until(lambda: len(site.server.watches) == 2)
    assert site.server.watches[-1].query["resourceVersion"] == str(site.cluster.version)
    await until(lambda: reader.store.healthy)
    site.cluster.compact()
    await site.server.stop()
    await site.server.start()
    await until(lambda: site.server.watching == 1)
    assert reader.resets == 1


async def test_place_that_the_server_forgot_is_found_by_a_list(site: Site) -> None:
    """410 as a status: all is listed again and told as a Reset, without what went meanwhile."""
    site.cluster.put("pods", pod("a", "10.0.0.1"))
    site.cluster.put("pods", pod("b", "10.0.0.2"))
    reader = await site.follow()
    await site.server.stop()
    site.cluster.delete("pods", "a")
    site.cluster.put("pods", pod("c", "10.0.0.3"))
    site.cluster.compact()
    await site.server.start()
    await reader.knows(TWO, THREE)
    assert [type(change) for change in reader.changes] == [Reset, Reset]


async def test_error_event_that_says_gone_leads_to_a_list(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """410 as an event within a watch; the list follows without a pause and without a word."""
    store = site.store(timing=replace(QUICK, delays=BackoffDelays(first=30)))
    reader = await site.follow(store)
    site.cluster.put("pods", pod("a"))
    await reader.knows(ONE)
    site.server.emit({"type": "ERROR", "object": Status(410, "Expired", "too old resource version").body})
    await until(lambda: reader.resets == 2 and len(site.server.watches) == 2)
    assert store.healthy and not caplog.records


async def test_watch_that_was_of_use_ends_the_trouble_before_it(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """What fails after it is a first failure again: a lost place is found without a pause and a word."""
    site.server.faults = [busy(503), busy(503)]
    reader = await site.follow()
    site.cluster.put("pods", pod("a"))
    await reader.knows(ONE)
    caplog.clear()
    site.server.emit({"type": "ERROR", "object": Status(410, "Expired", "too old resource version").body})
    await until(lambda: reader.resets == 2 and len(site.server.watches) == 2)
    assert reader.store.healthy and not caplog.records


async def test_server_that_forgets_at_once_is_not_stormed(site: Site) -> None:
    """A 410 to every watch is answered with growing pauses, and not with a list a millisecond."""
    site.server.garbage = b'{"type":"ERROR","object":{"code":410,"reason":"Expired"}}\n'
    reader = site.read(site.store(timing=replace(QUICK, delays=BackoffDelays(first=30, longest=30))))
    await until(lambda: len(site.server.lists) == 2)
    await stays(lambda: len(site.server.lists) == 2 and reader.resets <= 2)


async def test_place_ahead_of_a_server_that_was_restored_is_given_up(site: Site) -> None:
    """After a restore from a backup, versions start again: all is listed anew."""
    for number in range(10):
        site.cluster.put("pods", pod("a", labels={"app": "engine", "try": str(number)}))
    reader = await site.follow()
    await site.server.stop()
    site.cluster.restore(1001)
    await site.server.start()
    await until(lambda: reader.resets == 2)
    site.cluster.put("pods", pod("b", "10.0.0.2"))
    await reader.knows(ONE, TWO)


async def test_fleet_stays_as_known_during_an_outage(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """No change is told while the server is away; one line says so, and what happened is caught up with."""
    caplog.set_level(logging.INFO)
    site.cluster.put("pods", pod("a", "10.0.0.1"))
    reader = await site.follow()
    await site.server.stop()
    await until(lambda: not reader.store.healthy)
    site.cluster.put("pods", pod("b", "10.0.0.2"))
    await stays(lambda: reader.urls == {ONE} and len(reader.changes) == 1)
    assert "cannot be reached" in reader.store.reason
    await site.server.start()
    await reader.knows(ONE, TWO)
    await until(lambda: reader.store.healthy)
    assert reader.store.reason == ""
    assert reader.resets == 1
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) <= 3


async def test_server_that_comes_after_the_gateway_is_found(site: Site) -> None:
    await site.server.stop()
    reader = site.read(site.store())
    await until(lambda: "cannot be reached" in reader.store.reason)
    assert reader.changes == []
    site.cluster.put("pods", pod("a"))
    await site.server.start()
    await reader.knows(ONE)


async def test_connection_that_died_in_silence_is_given_up(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that neither speaks nor closes is left once its watch is overdue; nothing is missed."""
    reader = await site.follow(site.store(timing=replace(QUICK, watch=0.02, slack=0.1)))
    site.server.silent = True
    site.cluster.put("pods", pod("a"))
    await until(lambda: "stopped responding" in caplog.text)
    site.server.silent = False
    await reader.knows(ONE)
    assert reader.resets == 1


async def test_server_that_does_not_answer_is_given_up(site: Site) -> None:
    site.server.silent = True
    store = site.store(timing=replace(QUICK, answer=0.1))
    site.read(store)
    await until(lambda: "did not answer within 0.1 s" in store.reason)
    site.server.silent = False
    await until(lambda: store.healthy)


async def test_watch_that_ends_as_soon_as_it_begins_is_a_failure(site: Site) -> None:
    """A server that closes every watch at once is not asked as fast as it can answer."""
    site.server.watch_limit = 0
    store = site.store(timing=replace(QUICK, delays=BackoffDelays(first=30)))
    site.read(store)
    await until(lambda: "as soon as it began" in store.reason)
    await stays(lambda: len(site.server.asked) == 2)


@pytest.mark.parametrize("garbage", [b"not json\n", b"[]\n", b'{"type": "ERROR"}\n', b"\xff\n"])
async def test_watch_that_makes_no_sense_is_begun_again(site: Site, garbage: bytes) -> None:
    """Nothing is believed, nobody is told, and the place is kept."""
    site.server.garbage = garbage
    reader = site.read(site.store())
    await until(lambda: len(site.server.watches) > 2)
    site.server.garbage = b""
    site.cluster.put("pods", pod("a"))
    await reader.knows(ONE)


@pytest.mark.parametrize(
    "event", [{"type": "SOMETHING"}, {"type": "ADDED"}, {"type": "ADDED", "object": 3}, {}]
)
async def test_event_of_an_odd_shape_is_passed_over(site: Site, event: dict[str, object]) -> None:
    reader = await site.follow()
    site.server.emit({"type": "", **event})
    site.cluster.put("pods", pod("a"))
    await reader.knows(ONE)
    assert len(site.server.watches) == 1


async def test_text_that_unicode_breaks_lines_at_breaks_no_event(site: Site) -> None:
    reader = await site.follow()
    site.cluster.put("pods", pod("a", model="m\u0085x", labels={"app": "engine", "x": "\u2028"}))
    site.cluster.put("pods", pod("b", "10.0.0.2"))
    await until(lambda: TWO in reader.fleet)
    assert len(site.server.watches) == 1


async def test_server_that_is_busy_is_left_alone_for_as_long_as_it_says(site: Site) -> None:
    """429 with Retry-After: no request before its time, however short our own pauses are."""
    site.server.faults = [busy(429, retry_after="1")]
    loop = asyncio.get_running_loop()
    store = site.store()
    began = loop.time()
    site.read(store)
    await until(lambda: "429" in store.reason)
    await until(lambda: store.healthy)
    assert loop.time() - began >= 1


async def test_server_in_trouble_is_asked_again_with_the_place_kept(site: Site) -> None:
    """5xx and 429 to a watch lose nothing: no new list."""
    reader = await site.follow()
    site.server.faults = [busy(503), busy(500), busy(429)]
    await site.server.stop()
    await site.server.start()
    await until(lambda: not site.server.faults and reader.store.healthy)
    assert len(site.server.lists) == 1


async def test_token_that_rotates_is_read_again(site: Site) -> None:
    """The file is read for every watch; a watch that runs is not disturbed."""
    site.server.watch_limit = 0.05
    reader = await site.follow(site.store(timing=QUICK))
    site.server.token = "second-token"
    await until(lambda: "401" in reader.store.reason)
    site.token.write_text("second-token\n")
    site.cluster.put("pods", pod("a"))
    await reader.knows(ONE)
    assert {each.token for each in site.server.asked} == {"first-token", "second-token"}
    assert reader.resets == 1


@pytest.mark.parametrize("content", [None, b"", b"two words", b"\xff"])
async def test_token_file_without_a_token_is_told_and_read_again(
    site: Site, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    good = site.token.read_bytes()
    site.token.unlink()
    if content is not None:
        site.token.write_bytes(content)
    store = site.store()
    site.read(store)
    await until(lambda: f"token file {site.token}" in store.reason)
    assert not site.server.asked
    site.token.write_bytes(good)
    await until(lambda: store.healthy)
    assert good.decode() not in caplog.text
    assert "two words" not in caplog.text


async def test_who_may_not_list_is_told_why_and_asks_slowly(site: Site) -> None:
    """403: the server's own words are the reason, and it is not asked again soon."""
    site.server.rights.verbs = set()
    store = site.store()
    reader = site.read(store)
    await until(lambda: "403" in store.reason)
    assert 'User "system:serviceaccount:default:tito-gateway" cannot list resource "pods"' in store.reason
    await stays(lambda: len(site.server.asked) == 1 and reader.changes == [])


async def test_who_may_list_and_not_watch_lists_slowly(site: Site) -> None:
    """The fleet is there, the store is not healthy, and says what is missing."""
    site.server.rights.verbs = {"list"}
    site.cluster.put("pods", pod("a"))
    store = site.store(timing=replace(QUICK, delays=BackoffDelays(slow=0.02)))
    reader = site.read(store)
    await reader.knows(ONE)
    await until(lambda: "cannot watch" in store.reason)
    site.cluster.put("pods", pod("b", "10.0.0.2"))
    await reader.knows(ONE, TWO)
    assert not store.healthy
    site.server.rights.verbs = {"list", "watch"}
    await until(lambda: store.healthy)


async def test_selector_that_the_server_does_not_understand_is_told(site: Site) -> None:
    store = site.store(selector="app in engine")
    site.read(store)
    await until(lambda: "400" in store.reason)
    assert "unable to parse requirement" in store.reason


async def test_server_of_another_authority_is_not_trusted(site: Site, tmp_path: Path) -> None:
    """No token is sent to it; once its certificates are in the file, all is well."""
    other, good = tmp_path / "other.crt", site.certificates.read_bytes()
    trustme.CA().cert_pem.write_to_path(str(other))
    store = site.store(access=ApiServerAccess(site.server.url, site.token, other))
    site.read(store)
    await until(lambda: "certificate" in store.reason.lower())
    assert not site.server.asked
    other.write_bytes(good)
    await until(lambda: store.healthy)


@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
async def test_file_without_certificates_is_told(site: Site, content: bytes | None) -> None:
    site.certificates.unlink()
    if content is not None:
        site.certificates.write_bytes(content)
    store = site.store()
    site.read(store)
    await until(lambda: f"CA file {site.certificates}" in store.reason)
    assert not site.server.asked


async def test_bad_annotation_is_logged_once_and_costs_no_other_pod(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.cluster.put("pods", bad := pod("a", priority="high"))
    site.cluster.put("pods", pod("b", "10.0.0.2"))
    reader = await site.follow()
    assert reader.urls == {TWO}
    for _ in range(3):
        site.cluster.put("pods", bad)
    site.cluster.put("pods", pod("c", "10.0.0.3"))
    await reader.knows(TWO, THREE)
    reported = [text for text in caplog.messages if "tito-gateway/priority" in text]
    assert reported == ["kubernetes: default/a: ignored: tito-gateway/priority: 'high' is not an integer"]
    site.cluster.put("pods", pod("a", priority="7"))
    await until(lambda: ONE in reader.fleet)
    assert reader.fleet[ONE].priority == 7


async def test_slices_of_a_service_are_one_fleet(site: Site) -> None:
    """Endpoints of several slices are merged, in both families, and followed through all conditions."""
    kept = endpoint("10.0.0.1", "a", ready=True, serving=True, terminating=False)
    site.cluster.put("endpointslices", slice_("s1", kept, endpoint("10.0.0.2", "b", ready=True)))
    site.cluster.put("endpointslices", slice_("s2", endpoint("10.0.0.3", "c")))
    site.cluster.put(
        "endpointslices", slice_("s6", endpoint("fd00::1", "a"), endpoint("fd00::9", "d"), family="IPv6")
    )
    site.cluster.put(
        "endpointslices", slice_("other", endpoint("10.9.9.9"), labels={"kubernetes.io/service-name": "x"})
    )
    store = site.store(resource=ENDPOINT_SLICES, selector="kubernetes.io/service-name=engines")
    reader = await site.follow(store)
    assert reader.urls == {ONE, TWO, THREE, "http://[fd00::9]:30000"}
    leaving = endpoint("10.0.0.2", "b", ready=False, serving=True, terminating=True)
    site.cluster.put("endpointslices", slice_("s1", kept, leaving))
    site.cluster.delete("endpointslices", "s2")
    await reader.knows(ONE, "http://[fd00::9]:30000")
    assert site.server.lists[0].path == "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
