"""The fields of one line of the access log.

Owns: which fields there are, and their order. Must never enter: functions. This module is not compiled,
because a compiled class would lose the options ``frozen`` and ``gc`` of its struct.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec


class AccessLogLine(msgspec.Struct, frozen=True, gc=False):
    """One line of the access log.

    None means "does not apply" or "not known". Fields that end in ``_ms`` are milliseconds. ``process`` is
    the number of the gateway process, and is left out if there is only one.
    """

    time: datetime
    request_id: str | None
    session_id: str | None
    format: str
    endpoint: str
    request_type: str
    model: str | None
    worker: str | None
    status: int | None
    outcome: str
    error_type: str
    error: str | None
    rule: str | None
    ending: str | None
    finish_reasons: Mapping[str, int]
    attempts: int
    isl: int | None
    osl: int
    cached: int | None
    ttft_ms: float | None
    itl_ms: float | None
    elapsed_ms: float
    request_bytes: int
    reply_bytes: int
    routing: Mapping[str, Any] | None
    process: int | msgspec.UnsetType = msgspec.UNSET
