"""The kinds of simulated engines: the packages beside this module, one for each kind.

Owns: finding them. Must never enter: the name of an engine, what it does.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

from gateway.sim.engine import Dialect


def _dialects() -> Mapping[str, Dialect]:
    """Return the ``DIALECT`` of each package, by the package's name."""
    packages = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]) if module.ispkg]
    return MappingProxyType({name: import_module(f"gateway.sim.{name}").DIALECT for name in sorted(packages)})


#: Every kind of engine, by its name.
DIALECTS = _dialects()
