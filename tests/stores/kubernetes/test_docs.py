"""docs/kubernetes.md: what it shows is what the product needs, takes and asks for."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from gateway.settings import Settings, flag_of, load_settings
from gateway.stores.kubernetes.annotations import PREFIX, Annotations
from gateway.stores.kubernetes.follower import Timing
from gateway.stores.kubernetes.pods import read_pod
from gateway.stores.kubernetes.reading import Defaults
from gateway.stores.record import WorkerRecord
from gateway.wiring.kubernetes_store import RESOURCES
from tests.stores.kubernetes.conftest import Site
from tests.stores.kubernetes.things import Object, pod
from tests.support.gateway import until

PAGE = (Path(__file__).parents[3] / "docs" / "kubernetes.md").read_text()
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
OBJECTS: list[Object] = [object_ for block in BLOCKS for object_ in yaml.safe_load_all(block)]


def the(resource: str, name: str = "tito-gateway") -> Any:
    (found,) = [each for each in OBJECTS if (each["kind"], each["metadata"]["name"]) == (resource, name)]
    return found


def test_role_is_bound_to_the_account_of_the_gateway() -> None:
    binding, account = the("RoleBinding"), the("ServiceAccount")["metadata"]["name"]
    role = {"kind": "Role", "name": the("Role")["metadata"]["name"]}
    assert binding["roleRef"] == {"apiGroup": "rbac.authorization.k8s.io", **role}
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account}]
    assert the("Deployment")["spec"]["template"]["spec"]["serviceAccountName"] == account


async def test_rights_of_the_role_are_enough_and_none_is_too_much(site: Site) -> None:
    """With exactly what the role grants the store is healthy; without any part of it, it is not."""
    (rule,) = the("Role")["rules"]
    assert rule["apiGroups"] == [""]
    server = site.server
    server.verbs, server.kinds = set(rule["verbs"]), set(rule["resources"])
    await site.follow()
    for verb in rule["verbs"]:
        server.verbs = set(rule["verbs"]) - {verb}
        store = site.read().store
        await until(lambda store=store: "403" in store.reason)  # type: ignore[misc]


def test_other_kind_is_named_with_its_group() -> None:
    group = RESOURCES["endpointslices"].path.split("/")[2]
    assert f"`apiGroups: [{group}]`, `resources: [endpointslices]`" in PAGE


def test_gateway_starts_with_the_arguments_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.96.0.1")
    spec = the("Deployment")["spec"]["template"]["spec"]
    command, *flags = spec["containers"][0]["args"]
    assert command == "serve"
    names = {flag_of(name): name for name in Settings.model_fields}
    given = {names[flag]: value for flag, value in zip(flags[::2], flags[1::2], strict=True)}
    settings = load_settings(given)
    engines = the("Deployment", "engine")["spec"]["template"]["metadata"]["labels"]
    assert settings.kubernetes_selector in {f"{name}={value}" for name, value in engines.items()}
    assert spec["terminationGracePeriodSeconds"] > settings.graceful_shutdown_timeout_secs


def test_engine_shown_is_a_worker_with_all_that_its_annotations_say() -> None:
    template = the("Deployment", "engine")["spec"]["template"]
    object_ = pod("a")
    object_["metadata"]["annotations"] = template["metadata"]["annotations"]
    object_["spec"] = template["spec"]
    reading = read_pod(object_, Defaults())
    assert reading.problem == ""
    (candidate,) = reading.candidates
    assert isinstance(candidate.record, WorkerRecord) and candidate.record.url == "http://10.0.0.1:30000"
    assert (candidate.record.format, candidate.record.model) == ("sglang", "org/model-7b")
    assert candidate.record.labels["gpu"] == "h100"


def test_engine_shown_is_given_time_to_finish() -> None:
    spec = the("Deployment", "engine")["spec"]["template"]["spec"]
    (_, seconds) = spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert int(seconds) < spec["terminationGracePeriodSeconds"]


def test_every_annotation_has_its_row() -> None:
    documented = re.findall(rf"^\| `{PREFIX}([a-z-]+)` \|", PAGE, re.MULTILINE)
    known = {field.name.replace("_", "-") for field in fields(Annotations)} - {"unknown", "ports"} | {"port"}
    assert len(documented) == len(set(documented))
    assert set(documented) == known


def test_every_flag_named_exists() -> None:
    known = {flag_of(name) for name in Settings.model_fields}
    named = set(re.findall(r"(--(?:kubernetes|discovery)[a-z-]*)", PAGE))
    assert {flag for flag in known if flag.startswith("--kubernetes")} <= named <= known


def test_times_are_those_of_the_product() -> None:
    timing = Timing()
    delays = timing.delays
    assert f"delays that grow from {delays.first:g} s to {delays.longest:g} s" in PAGE
    assert f"within {timing.watch + timing.slack:g} s in any case" in PAGE
    assert f"every {delays.slow / 2:g} to {delays.slow:g} s" in PAGE
