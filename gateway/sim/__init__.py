"""Simulated engines: workers for the demo, doubles for the tests, and a way to test a training loop without a
GPU.

Owns: everything that behaves like an engine (SGLang 0.5.22, vLLM 0.33.0). Must never enter: the gateway
itself.
"""

from gateway.sim.config import KINDS, SGLANG, VLLM, SimConfig
from gateway.sim.process import main, run
from gateway.sim.request_log import AbortCall, Arrival, Milestone
from gateway.sim.script import Drop, Half, Pace, Raw, Reply, Script, Silence
from gateway.sim.server import SimServer

#: The former name of Milestone.
Mark = Milestone

__all__ = [
    "KINDS",
    "SGLANG",
    "VLLM",
    "AbortCall",
    "Arrival",
    "Drop",
    "Half",
    "Mark",
    "Milestone",
    "Pace",
    "Raw",
    "Reply",
    "Script",
    "Silence",
    "SimConfig",
    "SimServer",
    "main",
    "run",
]
