"""The stores by their name in the settings.

Owns: the table, one row per store. Must never enter: a store's behaviour, an import of a store that talks to
a server before it is wanted: with their HTTP client these take an eighth of the time to start.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.settings import Settings
from gateway.stores.base import Store
from gateway.stores.memory import MemoryStore
from gateway.wiring.file_store import file_store


def _etcd_store(settings: Settings) -> Store:
    from gateway.wiring.etcd_store import etcd_store  # noqa: PLC0415 - see the module's docstring

    return etcd_store(settings)


def _kubernetes_store(settings: Settings) -> Store:
    from gateway.wiring.kubernetes_store import kubernetes_store  # noqa: PLC0415 - likewise

    return kubernetes_store(settings)


#: Value of DYN_DISCOVERY_BACKEND -> function that makes the store from the settings. A store connects at the
#: first ``watch`` or ``put``.
STORES: Mapping[str, Callable[[Settings], Store]] = {
    "memory": lambda settings: MemoryStore(),
    "file": file_store,
    "etcd": _etcd_store,
    "kubernetes": _kubernetes_store,
}
