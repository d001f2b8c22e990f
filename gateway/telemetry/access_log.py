"""One line for each request of an inference route.

Owns: which facts a line holds and how it is spelled. Must never enter: prompts, replies, headers, keys;
anything that is not already in the exchange.

What a client or a worker named is cut to ``_LONGEST`` characters and written as ASCII with escapes, so that
no id can end a line, move a terminal's cursor or fill a disk.
"""

from __future__ import annotations

import json
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

_LONGEST = 256
_MOST_REASONS = 16
_STANDARD_OUTPUT = 1
#: Of a router's data: what is logged of it, how much of that, how deep. Its token ids are a prompt.
_ROUTING = ("worker_id", "timing")
_MOST_FACTS = 16
#: Visible ASCII but for the quote, the equals sign and the backslash: stands without quotes.
_PLAIN = re.compile(r"[!#-<>-\[\]-~]+")


class AccessLog:
    """Writes to the file descriptor ``fd``, or nowhere when not ``enabled``. ``lock`` is as in LineWriter.

    ``process`` names the process that writes, where it is one of several."""

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
        self._writer = LineWriter(fd, lock=lock) if enabled else None

    @property
    def dropped(self) -> int:
        """Lines lost so far."""
        return self._writer.dropped if self._writer is not None else 0

    def record(self, exchange: ExchangeRecord) -> None:
        """Write down ``exchange``, which has ended. Never blocks, never raises for want of a reader."""
        if self._writer is not None:
            self._writer.put(self._encode(line_of(exchange, datetime.now(UTC), self._process)))

    def close(self) -> None:
        """Write what is held, for at most a second."""
        if self._writer is not None:
            self._writer.close()


def line_of(
    exchange: ExchangeRecord, now: datetime, process: int | msgspec.UnsetType = msgspec.UNSET
) -> AccessLogLine:
    """The facts of an ended exchange. Nothing of it is kept alive: its error may hold a whole request."""
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
    return {_cut(reason): count for reason, count in Counter(reasons).most_common(_MOST_REASONS)}


def _routing(data: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What a router behind the worker's URL said of its choice, as it said it, within bounds."""
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
    some = list(value.items())[:_MOST_FACTS]
    return {_cut(str(name)): _bounded(inner, depth - 1) for name, inner in some}


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


_encoder = msgspec.json.Encoder()


def _as_json(line: AccessLogLine) -> bytes:
    try:
        encoded = _encoder.encode(line)
    except UnicodeEncodeError:
        encoded = b"\xff"  # a lone surrogate, which JSON can carry as an escape only
    if encoded.isascii():
        return encoded
    return json.dumps(_fields(line), separators=(",", ":"), ensure_ascii=True).encode()


def _as_text(line: AccessLogLine) -> bytes:
    """``name=value`` pairs, without those that say nothing."""
    fields = _fields(line)
    reasons = fields.pop("finish_reasons")
    assert isinstance(reasons, Mapping)
    fields["finish_reasons"] = ",".join(f"{reason}:{count}" for reason, count in reasons.items())
    return " ".join(
        f"{name}={_word(value)}" for name, value in fields.items() if value not in (None, "")
    ).encode()


def _fields(line: AccessLogLine) -> dict[str, object]:
    fields = msgspec.structs.asdict(line)
    if line.process is msgspec.UNSET:
        del fields["process"]
    return {**fields, "time": line.time.isoformat().replace("+00:00", "Z")}


def _word(value: object) -> str:
    text = json.dumps(value, separators=(",", ":")) if isinstance(value, Mapping) else str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
