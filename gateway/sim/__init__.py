"""Simulated engines: the demo's workers, the tests' doubles, and a way to test a training loop without a GPU.

Owns: everything that behaves like an engine. Must never enter: the gateway itself.
"""

from gateway.sim.arrivals import AbortCall, Arrival, Mark
from gateway.sim.config import KINDS, SGLANG, VLLM, SimConfig
from gateway.sim.process import main, run
from gateway.sim.script import Drop, Half, Pace, Raw, Reply, Script, Silence
from gateway.sim.server import SimServer

__all__ = [
    "KINDS",
    "SGLANG",
    "VLLM",
    "AbortCall",
    "Arrival",
    "Drop",
    "Half",
    "Mark",
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
