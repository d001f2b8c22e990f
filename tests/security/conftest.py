"""Fixtures of the tests of keys and TLS."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.security.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """A certificate authority for this test only."""
    return Authority(tmp_path)
