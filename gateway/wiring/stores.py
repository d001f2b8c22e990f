"""The stores by their name in the settings.

Owns: the table, one row per store. Must never enter: a store's behaviour.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.settings import Settings
from gateway.stores.base import Store
from gateway.stores.memory import MemoryStore
from gateway.wiring.etcd_store import etcd_store
from gateway.wiring.file_store import file_store
from gateway.wiring.kubernetes_store import kubernetes_store

#: Value of DYN_DISCOVERY_BACKEND -> function that makes the store from the settings. A store connects at the
#: first ``watch`` or ``put``.
STORES: Mapping[str, Callable[[Settings], Store]] = {
    "memory": lambda settings: MemoryStore(),
    "file": file_store,
    "etcd": etcd_store,
    "kubernetes": kubernetes_store,
}
