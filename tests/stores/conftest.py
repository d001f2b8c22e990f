"""A server of etcd that a test may stop and start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stores.etcd import cluster
from tests.stores.etcd.cluster import Member


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Member]:
    with cluster.running(tmp_path) as member:
        yield member
