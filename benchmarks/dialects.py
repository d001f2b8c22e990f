"""Requests and replies of the two dialects as bytes. A request carries an order for the simulated worker.

Owns: the shape of requests, replies and events. Must never enter: I/O, or work that the worker could avoid.

The order is encoded in ``stop_token_ids``, which every router passes on.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

#: Pace of a stream: as in its order; at the worker's tempo; at that tempo, with each event stamped with its
#: time.
OWN_PACE, TEMPO, TEMPO_STAMPED = range(3)
#: The text before the time of a stamped event, which is in nanoseconds of the monotonic clock.
STAMP = b'"text":"@'
STAMP_DIGITS = 20

_INTEGER = re.compile(rb" ?\d+")
_KNOBS = re.compile(rb'"stop_token_ids": ?\[([\d, ]+)\]')


class Knobs(NamedTuple):
    """The order of a request: ``pause_us`` between events (0: one in each turn of the worker's loop), the
    least ``size`` of an event or of a unary reply in bytes, ``first_us`` until the reply begins, and the
    ``pace``.
    """

    pause_us: int = 0
    size: int = 0
    first_us: int = 0
    pace: int = OWN_PACE


class Order(NamedTuple):
    """A request as the worker reads it."""

    rid: bytes
    tokens: int
    stream: bool
    knobs: Knobs


@dataclass(frozen=True)
class Dialect:
    """The spelling of one engine; ``reply`` and the two events are templates for ``%``."""

    path: str
    ids_key: str
    tokens_key: str
    rid_mark: bytes
    reply: bytes
    event: bytes
    last: bytes

    def request(self, ids: int, tokens: int, *, stream: bool = False, knobs: Knobs | None = None) -> bytes:
        """Return a request with a prompt of ``ids`` token ids, for ``tokens`` tokens."""
        wants = f',"stop_token_ids":{list(knobs)}'.replace(" ", "") if knobs else ""
        streams = '"stream":true,' if stream else ""
        sampling = f'{{"{self.tokens_key}":{tokens},"temperature":0{wants}}}'
        return f'{{"{self.ids_key}":[{_prompt(ids)}],{streams}"sampling_params":{sampling}}}'.encode()

    def order(self, head: bytes, body: bytes) -> Order:
        """Read the order of a request by searching: parsing long prompts would cost more than the reply."""
        tokens = body.find(b'"%b":' % self.tokens_key.encode())
        knobs = _KNOBS.search(body) if b'"stop_token_ids"' in body else None
        return Order(
            self._rid(head, body),
            _number(body, tokens + len(self.tokens_key) + 3) if tokens >= 0 else 16,
            b'"stream":true' in body or b'"stream": true' in body,
            Knobs(*map(int, knobs[1].split(b","))) if knobs else _PLAIN,
        )

    def _rid(self, head: bytes, body: bytes) -> bytes:
        if (at := body.find(self.rid_mark)) >= 0:
            start = body.index(b'"', at + len(self.rid_mark)) + 1
            return body[start : body.index(b'"', start)]
        lower = head.lower()
        if (at := lower.find(b"\r\nx-request-id:")) >= 0:
            return head[at + 15 : head.index(b"\r\n", at + 2)].strip()
        return b"none"

    def unary(self, order: Order) -> bytes:
        """Return a unary reply."""
        return self._filled(self.reply, order, order.tokens, b"t")

    def event_of(self, order: Order, number: int, text: bytes = b"t") -> bytes:
        """Return event ``number``, counted from 1; the last event of an order has the finish reason."""
        return self._filled(self.last if number >= order.tokens else self.event, order, number, text)

    def _filled(self, template: bytes, order: Order, number: int, text: bytes) -> bytes:
        values = {b"text": text, b"token": 1000 + number, b"id": order.rid, b"count": number}
        filled = template % values
        if (missing := order.knobs.size - len(filled)) > 0:
            values[b"text"] = text + _padding(missing)
            filled = template % values
        return filled


_PLAIN = Knobs()


@lru_cache(maxsize=64)
def _padding(size: int) -> bytes:
    return b"t" * size


def _number(text: bytes, at: int) -> int:
    found = _INTEGER.match(text, at)
    return int(found[0]) if found else 0


@lru_cache(maxsize=16)
def _prompt(ids: int) -> str:
    """Return ids of a large vocabulary, the same for each call."""
    some = random.Random(4096).sample(range(1000, 100_000), 4096)
    return ",".join(map(str, (some * (ids // 4096 + 1))[:ids]))


def _sglang(finish: bytes) -> bytes:
    return (
        b'{"text":"%(text)b","output_ids":[%(token)d],"meta_info":{"id":"%(id)b","finish_reason":'
        + finish
        + b',"prompt_tokens":8,"weight_version":"default","num_retractions":0,"completion_tokens":%(count)d,'
        b'"cached_tokens":0,"e2e_latency":0.0123}}'
    )


def _vllm(finish: bytes) -> bytes:
    """Return a template. The dialect has no text, so a field of its own fills a reply to the ordered size."""
    return (
        b'{"request_id":"%(id)b","usage":null,"output_mode":"tokens","choices":[{"index":0,"finish_reason":'
        + finish
        + b',"stop_reason":null,"token_ids":[%(token)d],"logprobs":null}],"kv_transfer_params":null,'
        b'"text":"%(text)b","count":%(count)d}'
    )


SGLANG = Dialect(
    path="/generate",
    ids_key="input_ids",
    tokens_key="max_new_tokens",
    rid_mark=b'"rid":',
    reply=_sglang(b'{"type":"length","length":1}'),
    event=b"data: " + _sglang(b"null") + b"\n\n",
    last=b"data: " + _sglang(b'{"type":"length","length":1}') + b"\n\n",
)
VLLM = Dialect(
    path="/inference/v1/generate",
    ids_key="token_ids",
    tokens_key="max_tokens",
    rid_mark=b'"request_id":',
    reply=_vllm(b'"length"'),
    event=b"data: " + _vllm(b"null") + b"\n\n",
    last=b"data: " + _vllm(b'"length"') + b"\n\n",
)

DONE = b"data: [DONE]\n\n"
BY_PATH = {dialect.path.encode(): dialect for dialect in (SGLANG, VLLM)}
