"""A simulated TensorRT-LLM server (trtllm-serve): its completions route with token ids, its rules and faults.

Owns: everything particular to TensorRT-LLM. Must never enter: connections, scheduling (gateway.sim), the
gateway.

A completions call is understood by ``request``, run by ``engine`` and answered by ``reply``; ``kv_events`` is
what the cache reports, and ``errors`` has the shapes of errors. It follows the public source (docs/trtllm.md
says which files); nothing was compared with a real server.
"""

from gateway.sim.engine import Dialect
from gateway.sim.trtllm.engine import TrtllmEngine

DIALECT = Dialect("/v1/completions", TrtllmEngine)
