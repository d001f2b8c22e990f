"""The build: the version of the gateway, and whether its hot modules are compiled.

Owns: these two facts. Must never enter: code that behaves differently because of them.
"""

from __future__ import annotations

from importlib.metadata import version
from types import FunctionType

from gateway.exchange import ExchangeRecord

NAME = "tito-gateway"
VERSION = version(NAME)

#: Read from the imported code itself, because another build may be installed.
COMPILED = not isinstance(ExchangeRecord.apply, FunctionType)
