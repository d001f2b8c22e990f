"""The contract of all formats, checked against models of their engines.

100 exchanges per law, 512 with ``--hypothesis-profile=long``.
"""

from __future__ import annotations

import pytest

from gateway.errors import InvalidRequest
from gateway.formats.base import AnyFormat
from gateway.formats.vllm.probes import CAPABILITY
from gateway.testing.contract import FormatContract
from tests.contract.models.relayed import RelayedModel
from tests.contract.models.sglang import SglangModel
from tests.contract.models.trtllm import TrtllmModel
from tests.contract.models.vllm import VllmModel
from tests.plugins.echo.gateway_echo import FORMAT
from tests.plugins.echo.tests.test_contract import EchoModel

# The default of a minute is for tests that wait; these compute.
pytestmark = pytest.mark.timeout(240)


class TestSglangIncremental(FormatContract):
    """As servers with ``--incremental-streaming-output`` stream."""

    model = SglangModel("incremental")


class TestSglangCumulative(FormatContract):
    """As servers stream by default."""

    model = SglangModel("cumulative")


class TestVllm(FormatContract):
    model = VllmModel()


class TestTrtllm(FormatContract):
    """Its clients abort by closing the connection. It merges no events and has no arrays in base64."""

    model = TrtllmModel()
    silent = frozenset({"joining_is_associative", "base64_survives"})

    def test_abort_call_of_any_body_is_read(self) -> None:
        with pytest.raises(InvalidRequest):
            self.model.format.aborted_ids(b"{}")


class TestRelayed(FormatContract):
    """Routes that are forwarded without inspection; their clients abort by closing the connection."""

    model = RelayedModel(CAPABILITY)

    def test_abort_call_of_any_body_is_read(self) -> None:
        with pytest.raises(InvalidRequest):
            self.model.format.aborted_ids(b"{}")


class ImportedEcho(EchoModel):
    """The sample format without its installation, which tests/plugins does."""

    @property
    def format(self) -> AnyFormat:
        return FORMAT


class TestEcho(FormatContract):
    model = ImportedEcho()
