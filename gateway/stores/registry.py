"""Which stores there are, by the name that settings give them.

Owns: the table, one row per store. Must never enter: a store's behaviour.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gateway.settings import Settings
from gateway.stores.base import Store
from gateway.stores.etcd.configured import etcd_store
from gateway.stores.file.configured import file_store
from gateway.stores.kubernetes.configured import kubernetes_store
from gateway.stores.memory import MemoryStore

#: Value of DYN_DISCOVERY_BACKEND -> how to make the store from the settings. Nothing is reached before
#: ``watch`` or ``put``.
STORES: Mapping[str, Callable[[Settings], Store]] = {
    "memory": lambda settings: MemoryStore(),
    "file": file_store,
    "etcd": etcd_store,
    "kubernetes": kubernetes_store,
}
