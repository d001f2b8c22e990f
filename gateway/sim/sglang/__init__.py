"""A simulated SGLang 0.5.22 server: its native routes, its rules and its faults.

Owns: everything particular to SGLang. Must never enter: connections, scheduling (gateway.sim), the gateway.

A generate call is read by ``generate_body`` (types of the request class) and ``published_schema`` (types of
the published schema), understood by ``request`` and ``sampling``, run by ``engine`` and answered by
``reply``. ``control``, ``control_bodies`` and ``information`` are the other routes; ``errors`` and
``field_types`` have the texts of errors.
"""

from gateway.sim.engine import Dialect
from gateway.sim.sglang.engine import SglangEngine

DIALECT = Dialect("/generate", SglangEngine)
