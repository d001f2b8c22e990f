"""The access log: one line for each request of an inference route.

Owns: which facts a line holds and how they are written. Must never enter: prompts, replies, headers, keys;
anything that is not already in the exchange record.

Text that comes from a client or a worker is cut to ``_TEXT_LIMIT`` characters and written as ASCII with
escapes, so that no id can end a line, move a terminal's cursor or fill a disk.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from typing import Any, Literal

import msgspec

from gateway.exchange import ExchangeRecord
from gateway.telemetry.access_log_line import AccessLogLine
from gateway.telemetry.line_writer import LineWriter

log = logging.getLogger(__name__)

_TEXT_LIMIT = 256
_REASONS_LIMIT = 16
_STANDARD_OUTPUT = 1
#: The members of a router's data that are logged; its token ids are a prompt and are not.
_ROUTING = ("worker_id", "timing")
_MEMBERS_LIMIT = 16
#: Text that needs no quotes: visible ASCII without the quote, the equals sign and the backslash.
_PLAIN = re.compile(r"[!#-<>-\[\]-~]+")


class AccessLog:
    """The writer of the access log.

    It writes to the file descriptor ``fd``, or nowhere if not ``enabled``. ``lock`` is as in LineWriter.
    ``process`` is the number of this gateway process if there are several.
    """

    def __init__(
        self,
        *,
        enabled: bool = True,
        shape: Literal["json", "text"] = "json",
        fd: int = _STANDARD_OUTPUT,
        lock: AbstractContextManager[object] | None = None,
        process: int | None = None,
    ) -> None:
        self._process = msgspec.UNSET if process is None else process
        self._encode = _as_json if shape == "json" else _as_text
        self._writer = LineWriter(fd, lock=lock, on_failure=_report) if enabled else None

    @property
    def dropped(self) -> int:
        """The number of lines lost so far."""
        return self._writer.dropped if self._writer is not None else 0

    def record(self, exchange: ExchangeRecord) -> None:
        """Write the line of ``exchange``, which has ended.

        Never block or raise, even if nobody reads the log or its disk is full.
        """
        if self._writer is not None:
            self._writer.put(self._encode(line_of(exchange, datetime.now(UTC), self._process)))

    def close(self) -> None:
        """Write the buffered lines, for at most one second."""
        if self._writer is not None:
            self._writer.close()


def _report(error: OSError) -> None:
    log.warning("the access log could not be written, its lines are lost: %s", error.strerror)


def line_of(
    exchange: ExchangeRecord, now: datetime, process: int | msgspec.UnsetType = msgspec.UNSET
) -> AccessLogLine:
    """Return the line of an ended exchange.

    The line refers to no object of the exchange, because its error may hold the complete request.
    """
    ttft, error, gaps = exchange.ttft, exchange.error, exchange.gaps
    return AccessLogLine(
        time=now,
        request_id=_cut(exchange.public_id) if exchange.public_id is not None else None,
        session_id=_cut(exchange.session) if exchange.session is not None else None,
        format=exchange.format,
        endpoint=exchange.endpoint,
        request_type="stream" if exchange.stream else "unary",
        model=exchange.model,
        worker=exchange.worker,
        status=exchange.status,
        outcome=exchange.state,
        error_type=exchange.error_type,
        error=error.code if error is not None else None,
        rule=error.rule if error is not None else None,
        ending=exchange.ending,
        finish_reasons=_counted(exchange.finish_reasons),
        attempts=exchange.attempts,
        isl=exchange.prompt_tokens,
        osl=exchange.tokens,
        cached=exchange.cached_tokens,
        ttft_ms=_milliseconds(ttft) if ttft is not None else None,
        itl_ms=_milliseconds(gaps.total / sum(gaps.counts)) if gaps is not None else None,
        elapsed_ms=_milliseconds(exchange.elapsed),
        request_bytes=exchange.request_bytes,
        reply_bytes=exchange.reply_bytes,
        routing=_routing(exchange.routing_data) if exchange.routing_data else None,
        process=process,
    )


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)


def _counted(reasons: tuple[str, ...]) -> Mapping[str, int]:
    if len(reasons) < 2:
        return {_cut(reason): 1 for reason in reasons}
    return {_cut(reason): count for reason, count in Counter(reasons).most_common(_REASONS_LIMIT)}


def _routing(data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the logged members of the data that a router behind the worker's URL sent, within limits."""
    return {name: _bounded(data[name]) for name in _ROUTING if name in data} or None


def _bounded(value: Any, depth: int = 2) -> Any:
    if isinstance(value, str):
        return _cut(value)
    if value is None or isinstance(value, bool | float):
        return value
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else "..."
    if not depth or not isinstance(value, Mapping):
        return "..."
    members = list(value.items())[:_MEMBERS_LIMIT]
    return {_cut(str(name)): _bounded(inner, depth - 1) for name, inner in members}


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_LIMIT else f"{text[:_TEXT_LIMIT]}..."


_encoder = msgspec.json.Encoder()


def _as_json(line: AccessLogLine) -> bytes:
    try:
        encoded = _encoder.encode(line)
    except UnicodeEncodeError:
        encoded = b"\xff"  # not ASCII: an unpaired surrogate, which JSON can hold as an escape only
    if encoded.isascii():
        return encoded
    return json.dumps(_fields(line), separators=(",", ":"), ensure_ascii=True).encode()


def _as_text(line: AccessLogLine) -> bytes:
    """Return the line as ``name=value`` pairs, without empty values."""
    fields = _fields(line)
    reasons = fields.pop("finish_reasons")
    assert isinstance(reasons, Mapping)
    fields["finish_reasons"] = ",".join(f"{reason}:{count}" for reason, count in reasons.items())
    return " ".join(
        f"{name}={_quoted(value)}" for name, value in fields.items() if value not in (None, "")
    ).encode()


def _fields(line: AccessLogLine) -> dict[str, object]:
    fields = msgspec.structs.asdict(line)
    if line.process is msgspec.UNSET:
        del fields["process"]
    return {**fields, "time": line.time.isoformat().replace("+00:00", "Z")}


def _quoted(value: object) -> str:
    text = json.dumps(value, separators=(",", ":")) if isinstance(value, Mapping) else str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
