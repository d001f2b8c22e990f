"""Both engines' dialects, for the tests of what they have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from gateway.formats.contract import Headers, Ids, Reader, ReplyHead
from gateway.formats.sglang import FORMAT as SGLANG
from gateway.formats.sglang import errors as sglang_errors
from gateway.formats.vllm import FORMAT as VLLM
from gateway.formats.vllm import errors as vllm_errors
from tests.formats.sglang import support as sglang
from tests.formats.support import EVENTS, HEX, JSON, View
from tests.formats.vllm import support as vllm


@dataclass(frozen=True)
class Dialect:
    """``make(new, total, finish, index)``: an event of ``new`` tokens of a sample that has ``total`` then."""

    name: str
    format: Any
    make: Callable[[int, int, str | None, int], bytes]
    in_band: Callable[..., bytes]

    def event(self, total: int, finish: str | None = None, *, index: int = 0, new: int = 1) -> bytes:
        return self.make(new, total, finish, index)

    @property
    def life(self) -> tuple[bytes, bytes, bytes]:
        return self.event(1), self.event(2), self.event(3, "stop")

    def reading(  # noqa: PLR0913 - what a reader is made for
        self,
        kind: str = "reader",
        *,
        stream: bool = True,
        samples: int = 1,
        status: int = 200,
        headers: Headers | None = None,
        ids: Ids | None = None,
        passthrough_engine_errors: str = "false",
    ) -> Reader:
        body = '{"input_ids":[1],"token_ids":[1],"stream":%s,"sampling_params":{"n":%d}}'
        request = self.format.parse((body % (str(stream).lower(), samples)).encode(), ())
        head = ReplyHead(status, (EVENTS if stream else JSON) if headers is None else headers)
        make = getattr(self.format.configured({"passthrough_engine_errors": passthrough_engine_errors}), kind)
        reader: Reader = make(request, View(), ids or Ids((HEX,), (HEX,)), head)
        return reader


def _sglang(new: int, total: int, finish: str | None, index: int) -> bytes:
    return sglang.event(total, finish, index=index)


def _vllm(new: int, total: int, finish: str | None, index: int) -> bytes:
    return vllm.chunk([7] * new, finish, index=index)


DIALECTS = {
    "sglang": Dialect("sglang", SGLANG, _sglang, sglang_errors.in_band),
    "vllm": Dialect("vllm", VLLM, _vllm, vllm_errors.in_band),
}
BOTH = pytest.mark.parametrize("dialect", DIALECTS.values(), ids=DIALECTS)
