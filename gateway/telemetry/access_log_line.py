"""The facts of one line of the access log.

Owns: which there are, and their order. Must never enter: functions; this module is not compiled, as that
would cost the line what is said of it in its head.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec


class AccessLogLine(msgspec.Struct, frozen=True, gc=False):
    """One line; None is left to stand for "does not apply" or "not known". Times ``_ms`` in milliseconds.

    ``process`` is the id of the one of several processes that writes it, and not there with one process."""

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
