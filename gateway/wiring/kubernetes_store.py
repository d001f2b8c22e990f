"""The Kubernetes store that the settings describe.

Owns: defaults of settings. Must never enter: the API server's protocol, what an object means.
"""

from __future__ import annotations

import random
from pathlib import Path

from gateway.settings import Settings
from gateway.stores.kubernetes.access import ACCOUNT, ApiServerAccess, account_namespace
from gateway.stores.kubernetes.annotations import port_of
from gateway.stores.kubernetes.follower import Selection
from gateway.stores.kubernetes.pods import PODS
from gateway.stores.kubernetes.reading import Defaults
from gateway.stores.kubernetes.slices import ENDPOINT_SLICES
from gateway.stores.kubernetes.store import KubernetesStore

RESOURCES = {resource.name: resource for resource in (PODS, ENDPOINT_SLICES)}


def kubernetes_store(settings: Settings, account: Path = ACCOUNT) -> KubernetesStore:
    """Return the store. ``account`` is the folder of the pod's service account.

    Raises ValueError without a selector or a server; Settings requires both for this store.
    """
    return KubernetesStore(access_of(settings, account), selection_of(settings, account), random.Random())


def access_of(settings: Settings, account: Path) -> ApiServerAccess:
    """Return URL and credentials. The pod's own token is the default for its own cluster only."""
    server = settings.kubernetes_server
    if server is None:
        raise ValueError("no API server")
    token, authorities = settings.kubernetes_token_file, settings.kubernetes_ca_file
    if settings.kubernetes_api_url is None:
        token, authorities = token or str(account / "token"), authorities or str(account / "ca.crt")
    return ApiServerAccess(server, _path(token), _path(authorities))


def selection_of(settings: Settings, account: Path) -> Selection:
    """Return which objects are workers."""
    if settings.kubernetes_selector is None:
        raise ValueError("no selector")
    namespace = settings.kubernetes_namespace or account_namespace(account)
    port = settings.kubernetes_port
    return Selection(
        resource=RESOURCES[settings.kubernetes_resource],
        selector=settings.kubernetes_selector,
        namespace=None if namespace == "*" else namespace,
        defaults=Defaults(port and port_of(port), settings.kubernetes_scheme, settings.kubernetes_port_label),
    )


def _path(name: str | None) -> Path | None:
    return None if name is None else Path(name)
