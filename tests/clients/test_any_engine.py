"""What frameworks need of the gateway, in front of simulated engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.contract import ClientContract


class TestSimulatedEngines(ClientContract):
    @pytest.fixture
    def weights(self, tmp_path: Path) -> Path:
        return tmp_path
