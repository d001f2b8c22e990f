"""The resolver of a chaos run: names of workers have the address that a file gives them at the moment."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

_NAMES = Path(os.environ["CHAOS_NAMES"])  # noqa: TID251 - the gateway has no setting for it
_lookup = socket.getaddrinfo


def _getaddrinfo(host: Any, *arguments: Any, **named: Any) -> Any:
    return _lookup(json.loads(_NAMES.read_text()).get(host, host), *arguments, **named)


socket.getaddrinfo = _getaddrinfo
