"""Empty stand-ins for packages that SGLang imports on a CPU and never calls there.

Python imports a module of this name at start-up when its folder is on PYTHONPATH. ``torchvision`` serves
images and ``sgl_kernel`` GPUs; neither has a matching build. Any name imported from a stand-in exists and
does nothing. A check whether the package is installed still finds that it is not.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

ABSENT = frozenset({"torchvision", "sgl_kernel"})


class Nothing:
    """An object that can be called, subclassed and asked for attributes, all without effect."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        pass

    def __call__(self, *args: object, **kwargs: object) -> Nothing:
        return self

    def __getattr__(self, name: str) -> Nothing:
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()


class StandIn(ModuleType):
    __version__ = "0"

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        # Capitalised names are classes, which are used in annotations, base lists and isinstance.
        return type(name, (Nothing,), {}) if name[0].isupper() else Nothing()


class Finder(MetaPathFinder, Loader):
    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if is_absent(fullname) else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: a stand-in has no code."""


def is_absent(name: str) -> bool:
    return name.partition(".")[0] in ABSENT


def truthful(find_spec: Callable[..., ModuleSpec | None]) -> Callable[..., ModuleSpec | None]:
    def wrapper(name: str, package: str | None = None) -> ModuleSpec | None:
        return None if is_absent(name) else find_spec(name, package)

    return wrapper


importlib.util.find_spec = truthful(importlib.util.find_spec)
sys.meta_path.append(Finder())
