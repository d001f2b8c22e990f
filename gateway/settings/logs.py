"""Settings: logs.

Owns: which lines are written, and in which format. Must never enter: the content of a line.
"""

from __future__ import annotations

from typing import Literal

from gateway.settings.fields import Choice, Section, setting


class Logs(Section):
    """Logs."""

    log_level: Choice[Literal["critical", "error", "warning", "info", "debug"]] = setting(
        "DYN_LOG_LEVEL",
        "info",
        "Lowest severity of the log lines to write: critical, error, warning, info, debug",
    )
    access_log: bool = setting(
        "DYN_ACCESS_LOG", True, "Write one line to standard output for each request of an inference route"
    )
    access_log_format: Choice[Literal["json", "text"]] = setting(
        "DYN_ACCESS_LOG_FORMAT", "json", "Format of access log lines: json, text"
    )
    log_lines_per_minute: int = setting(
        "DYN_LOG_LINES_PER_MINUTE",
        600,
        "Most log lines of one kind in a minute; more are counted and not written; 0: no limit",
        ge=0,
    )
