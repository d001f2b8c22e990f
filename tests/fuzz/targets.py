"""All fuzzing targets by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.fuzz import listener, readers, requests, upstream
from tests.fuzz.target import Target

_ALL: tuple[Target[Any], ...] = (upstream.TARGET, listener.TARGET, *readers.targets(), *requests.targets())
TARGETS: Mapping[str, Target[Any]] = {target.name: target for target in _ALL}
