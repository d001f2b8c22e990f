"""The contract of every endpoint of each dialect."""

from __future__ import annotations

import json

from gateway.testing.endpoint import EndpointContract
from tests.contract import probes
from tests.contract.models.sglang import SglangModel
from tests.contract.models.trtllm import TrtllmModel
from tests.contract.models.vllm import VllmModel


class SglangEndpoint(EndpointContract):
    probes = probes.SGLANG

    def abort_call(self, public: str) -> bytes:
        return json.dumps({"rid": public}).encode()


class VllmEndpoint(EndpointContract):
    model = VllmModel()
    probes = probes.VLLM

    def abort_call(self, public: str) -> bytes:
        return json.dumps({"request_ids": [public]}).encode()


class TestSglangAtGenerate(SglangEndpoint):
    """With ``DYN_GENERATE_FORMAT=sglang``, and by default."""

    model = SglangModel("incremental")


class TestSglangCumulativeAtGenerate(SglangEndpoint):
    """The other stream mode."""

    model = SglangModel("cumulative")


class TestVllmAtGenerate(VllmEndpoint):
    """With ``DYN_GENERATE_FORMAT=vllm``, ``/generate`` speaks vLLM."""


class TestVllmAtItsOwnPath(VllmEndpoint):
    """Independent of the format of ``/generate``."""

    path = "/inference/v1/generate"
    settings = {"generate_format": "sglang"}


class TrtllmEndpoint(EndpointContract):
    model = TrtllmModel()
    probes = probes.TRTLLM


class TestTrtllmAtGenerate(TrtllmEndpoint):
    """With ``DYN_GENERATE_FORMAT=trtllm``, ``/generate`` speaks TensorRT-LLM."""


class TestTrtllmAtItsOwnPath(TrtllmEndpoint):
    """With ``--endpoint trtllm``, at the path that the format names."""

    path = "/trtllm/v1/completions"
    settings = {"generate_format": "sglang", "endpoint": ("trtllm",)}
