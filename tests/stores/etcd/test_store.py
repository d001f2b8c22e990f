"""Records in a real etcd."""

from __future__ import annotations

from tests.stores.contract import SharedStoreContract


class TestContract(SharedStoreContract):
    """What every store promises."""
