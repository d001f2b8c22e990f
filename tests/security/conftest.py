"""What the tests of keys and TLS share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.security.certificates import Authority


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """An authority of this test's own."""
    return Authority(tmp_path)
