"""Pods and EndpointSlices, as the API server shows them."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import count
from typing import Any

from tests.stores.kubernetes.cluster import Object

_SERIAL = count(1)


def stamp() -> str:
    """A creation time, later with each call."""
    serial = next(_SERIAL)
    return (datetime(2026, 1, 1) + timedelta(seconds=serial)).isoformat() + "Z"


def pod(
    name: str,
    ip: str = "10.0.0.1",
    *,
    uid: str | None = None,
    namespace: str = "default",
    labels: dict[str, str] | None = None,
    ready: bool = True,
    leaving: bool = False,
    ports: list[Object] | None = None,
    **annotations: str,
) -> Object:
    """A pod. ``annotations`` are annotations of ours, ``_`` for ``-``."""
    meta: Object = {
        "name": name,
        "namespace": namespace,
        "uid": uid or f"uid-{namespace}-{name}",
        "creationTimestamp": stamp(),
        "labels": {"app": "engine"} if labels is None else labels,
        "annotations": {f"tito-gateway/{key.replace('_', '-')}": value for key, value in annotations.items()},
    }
    if leaving:
        meta["deletionTimestamp"] = stamp()
    container = {"name": "engine", "ports": [{"containerPort": 30000}] if ports is None else ports}
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {
        "metadata": meta,
        "spec": {"nodeName": "node-1", "containers": [container]},
        "status": {"podIP": ip, "conditions": conditions},
    }


def endpoint(address: str, target: str = "", **conditions: bool) -> Object:
    """An endpoint, of the pod ``target`` if it has one; conditions that are not given are missing."""
    found: Object = {"addresses": [address], "conditions": conditions, "nodeName": "node-1"}
    if target:
        uid = f"uid-default-{target}"
        found["targetRef"] = {"kind": "Pod", "namespace": "default", "name": target, "uid": uid}
    return found


def slice_(
    name: str,
    *endpoints: Object,
    family: str = "IPv4",
    ports: list[Object] | None = None,
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> Object:
    """A slice of the Service "engines"."""
    meta: Object = {
        "name": name,
        "namespace": "default",
        "uid": f"uid-{name}",
        "creationTimestamp": stamp(),
        "labels": {"kubernetes.io/service-name": "engines", **(labels or {})},
        "annotations": annotations or {},
    }
    usual: list[Any] = [{"name": "", "port": 30000, "protocol": "TCP"}]
    return {
        "metadata": meta,
        "addressType": family,
        "endpoints": list(endpoints),
        "ports": usual if ports is None else ports,
    }
