"""The build: the version of the gateway, and whether its hot modules are compiled.

Owns: telling it. Must never enter: anything that behaves differently because of it.
"""

from __future__ import annotations

from importlib.metadata import version
from types import FunctionType

from gateway.exchange import ExchangeRecord

NAME = "tito-gateway"
VERSION = version(NAME)

#: Asked of the code itself: what was installed, and what is imported, may be two things.
COMPILED = not isinstance(ExchangeRecord.apply, FunctionType)
