"""The contract of endpoints for a relayed route, except for what is not inspected."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from gateway.formats.base import AnyFormat
from gateway.formats.registry import load_formats
from gateway.formats.vllm.probes import CAPABILITY
from gateway.testing.endpoint import EndpointContract
from tests.contract import probes
from tests.contract.models.relayed import PATH, RelayedModel

HOST = "vllm"

pytestmark = pytest.mark.timeout(240)


class TestEndpoint(EndpointContract):
    model: ClassVar[Any] = RelayedModel(CAPABILITY)
    probes = probes.VLLM
    path = PATH

    @property
    def host(self) -> AnyFormat:
        return load_formats()[HOST]

    @pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000])
    async def test_body_that_is_no_request_is_refused_in_the_dialect(self, body: bytes) -> None:
        """By the engine, which gets it unchanged."""
        async with self.wire() as wire:
            wire.reply_unary(400, b'{"error":{}}', (b"content-type", b"application/json"))
            assert (await wire.post(body)).status_code == 400
            assert [call.body for call in wire.worker.calls] == [body]

    async def test_malformed_unary_reply_is_a_failure_in_the_dialect(self) -> None:
        """It is relayed, because the gateway does not parse it."""
        async with self.wire() as wire:
            wire.reply_unary(200, b'{"broken', *wire.exchange.unary_head.headers)
            assert (await wire.post()).content == b'{"broken'

    async def test_every_request_is_counted_once(self) -> None:
        """Under its own path."""
        async with self.wire() as wire:
            wire.reply_stream(*wire.exchange.stream)
            wire.reply_unary(503, b"{}", (b"content-type", b"application/json"))
            for _ in range(2):
                await wire.post()
            lines = (await wire.gateway.client.get("/metrics")).text.splitlines()
            counts = [line for line in lines if line.startswith("dynamo_frontend_requests_total{")]
            assert sum(float(line.rpartition(" ")[2]) for line in counts) == 2
            assert sum('status="success"' in line for line in counts) == 1
