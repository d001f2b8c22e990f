"""What clients of either dialect see of a whole gateway, on every path that speaks it."""

from __future__ import annotations

import json

from gateway.testing.endpoint import EndpointContract
from tests.contract import probes
from tests.contract.models.vllm import VllmModel


class TestVllmWhereSettingsPutIt(EndpointContract):
    """``/generate`` speaks it with ``DYN_GENERATE_FORMAT=vllm``."""

    model = VllmModel()
    probes = probes.VLLM

    def abort_call(self, public: str) -> bytes:
        return json.dumps({"request_ids": [public]}).encode()


class TestVllmAtItsOwnPath(TestVllmWhereSettingsPutIt):
    """Whatever ``/generate`` speaks."""

    path = "/inference/v1/generate"
    settings = {"generate_format": "sglang"}
