"""Pods and EndpointSlices, as the API server shows them."""

from __future__ import annotations

from datetime import datetime, timedelta
from itertools import count
from typing import Any

Object = dict[str, Any]

_SERIAL = count(1)


def _meta(name: str, namespace: str, uid: str, labels: Object, annotations: Object) -> Object:
    """The later an object is made, the later is its creation time."""
    created = datetime(2026, 1, 1) + timedelta(seconds=next(_SERIAL))
    where = {"name": name, "namespace": namespace, "uid": uid}
    return {
        **where,
        "creationTimestamp": f"{created.isoformat()}Z",
        "labels": labels,
        "annotations": annotations,
    }


def pod(
    name: str,
    ip: str = "10.0.0.1",
    *,
    uid: str | None = None,
    namespace: str = "default",
    ready: bool = True,
    leaving: bool = False,
    ports: list[Object] | None = None,
    **annotations: str,
) -> Object:
    """A pod. ``annotations`` are annotations of ours, ``_`` for ``-``."""
    ours = {f"tito-gateway/{key.replace('_', '-')}": value for key, value in annotations.items()}
    meta = _meta(name, namespace, uid or f"uid-{namespace}-{name}", {"app": "engine"}, ours)
    if leaving:
        meta["deletionTimestamp"] = meta["creationTimestamp"]
    container = {"name": "engine", "ports": [{"containerPort": 30000}] if ports is None else ports}
    return {
        "metadata": meta,
        "spec": {"nodeName": "node-1", "containers": [container]},
        "status": {"podIP": ip, "conditions": [{"type": "Ready", "status": str(ready)}]},
    }


def endpoint(address: str, target: str = "", **conditions: bool) -> Object:
    """An endpoint, of the pod ``target`` if it has one; conditions that are not given are missing."""
    found: Object = {"addresses": [address], "conditions": conditions, "nodeName": "node-1"}
    if target:
        found["targetRef"] = {"kind": "Pod", "name": target, "uid": f"uid-default-{target}"}
    return found


def slice_(
    name: str,
    *endpoints: Object,
    family: str = "IPv4",
    ports: list[Object] | None = None,
    labels: Object | None = None,
    annotations: Object | None = None,
) -> Object:
    """A slice of the Service "engines"."""
    labels = {"kubernetes.io/service-name": "engines", **(labels or {})}
    usual = [{"name": "", "port": 30000, "protocol": "TCP"}]
    return {
        "metadata": _meta(name, "default", f"uid-{name}", labels, annotations or {}),
        "addressType": family,
        "endpoints": list(endpoints),
        "ports": usual if ports is None else ports,
    }
