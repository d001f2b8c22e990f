"""A simulated vLLM 0.33.0 server: its token-in, token-out routes, its rules and its faults.

Owns: everything particular to vLLM. Must never enter: connections, scheduling (gateway.sim), the gateway.

A generate call is understood by ``request`` and ``sampling``, run by ``engine`` and answered by ``reply``.
``control`` and ``control_input`` are the other routes; ``errors`` and ``field_types`` have the texts of
errors.
"""

from gateway.sim.engine import Dialect
from gateway.sim.vllm.engine import VllmEngine

DIALECT = Dialect("/inference/v1/generate", VllmEngine)
