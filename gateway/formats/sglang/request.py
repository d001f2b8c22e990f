"""A request as far as it was peeked at, and a call that aborts one.

Owns: what is kept of it. Must never enter: work that is done for every request. This module is not compiled,
as that would cost the struct what is said of it in its head.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.formats.contract import Headers
from gateway.formats.json.windows import Span
from gateway.formats.sglang.peeked import Peek


class AbortCall(msgspec.Struct):
    rid: str | None = None
    abort_all: bool = False


class SglangRequest(msgspec.Struct, frozen=True):
    """One request, peeked at.

    ``batch`` is the number of prompts in a list of prompts and None for a single one, ``fan`` the number of
    samples of each, ``samples`` that of all. ``rid`` is as the body has it, UNSET when it has none; ``ids``
    are the names the client gave, in the body or else by header. ``in_session``: the engine continues a
    session it keeps. ``peek`` is where the hints are still to be read. ``rid_spans``: where in a big body the
    values of its rids stand, None: not looked for.
    """

    body: bytes
    headers: Headers
    stream: bool
    rid: str | list[str] | None | msgspec.UnsetType
    ids: tuple[str, ...]
    batch: int | None
    fan: int
    prompt_tokens: int | None
    max_tokens: int | None
    in_session: bool
    model: str | None
    peek: Peek
    samples: int
    rid_spans: Sequence[Span] | None = None

    def without_body(self) -> SglangRequest:
        """Without what was peeked at, too, which holds parts of it."""
        return msgspec.structs.replace(self, body=b"", peek=Peek())
