"""The contract of all formats, held against models of their engines: 512 exchanges for each law.

(The sample format's own suite is tests/plugins/echo/tests, run as its author runs it.)
"""

from __future__ import annotations

import pytest

from gateway.testing.contract import FormatContract
from tests.contract.models.sglang import SglangModel
from tests.contract.models.vllm import VllmModel

# A minute is for tests that wait; these compute.
pytestmark = pytest.mark.timeout(240)


class TestSglangIncremental(FormatContract):
    """As servers with ``--incremental-streaming-output`` stream."""

    model = SglangModel("incremental")


class TestSglangCumulative(FormatContract):
    """As servers stream by default."""

    model = SglangModel("cumulative")


class TestVllm(FormatContract):
    model = VllmModel()
