"""Simulated engines: workers for the demo, doubles for the tests, a way to test a training loop without a
GPU.

Owns: everything that behaves like an engine (SGLang 0.5.22, vLLM 0.33.0, TensorRT-LLM). Must never enter: the
gateway.

``server`` is what tests use and ``process`` what the command line runs. Below them: ``http1`` (connections),
``exchange`` (one request and its answer), ``engine`` (routes and scripts), ``answers`` (events of an answer),
``scheduler``, ``sequence``, ``pacer``, ``prefix_cache`` and ``tokens`` (the engine's core), ``request_log``,
``script`` and ``config``. Each package has what is particular to an engine, and ``dialects`` finds them.
"""

from gateway.sim.config import SGLANG, VLLM, SimConfig
from gateway.sim.dialects import DIALECTS
from gateway.sim.process import main, run
from gateway.sim.request_log import AbortCall, Arrival, Milestone
from gateway.sim.script import Drop, Half, Pace, Raw, Reply, Script, Silence
from gateway.sim.server import SimServer

#: The former name of Milestone.
Mark = Milestone
KINDS = tuple(DIALECTS)

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
