"""A request as far as it was peeked at, and what is peeked at.

Owns: which fields there are. Must never enter: work that is done for every request. This module is not
compiled, as that would cost the structs what is said of them in their heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.formats.contract import Headers
from gateway.formats.json.windows import Span

NULL = msgspec.Raw(b"null")


class Request(msgspec.Struct, frozen=True, gc=False):
    """A request as far as it was peeked at. ``name`` is the id its client gave, None if it gave none.

    ``id_cuts``: where in a big body the id's member stands, None: not looked for.
    """

    body: bytes
    headers: Headers
    stream: bool
    name: str | None
    model: str | None
    prompt_tokens: int | None
    max_tokens: int | None
    samples: int
    token_ids: msgspec.Raw
    priority: int
    cache_salt: str | None
    features: msgspec.Raw
    id_cuts: Sequence[Span] | None = None

    def without_body(self) -> Request:
        """Without what only hints are made of, too."""
        return msgspec.structs.replace(self, body=b"", token_ids=NULL, features=NULL, cache_salt=None)


class Sampling(msgspec.Struct, frozen=True, gc=False):
    n: int = 1
    max_tokens: int | None = None


class Body(msgspec.Struct, gc=False):
    token_ids: msgspec.Raw = msgspec.Raw()
    sampling_params: Sampling = Sampling()
    request_id: str | None = None
    model: str | None = None
    stream: bool | None = False
    priority: int = 0
    cache_salt: str | None = None
    features: msgspec.Raw = NULL


class UntypedSampling(msgspec.Struct, frozen=True, gc=False):
    n: msgspec.Raw = msgspec.Raw(b"1")
    max_tokens: msgspec.Raw = NULL


class UntypedBody(msgspec.Struct, gc=False):
    """The same fields with nothing said of their types."""

    token_ids: msgspec.Raw = msgspec.Raw()
    sampling_params: msgspec.Raw = msgspec.Raw(b"{}")
    request_id: msgspec.Raw = NULL
    model: msgspec.Raw = NULL
    stream: msgspec.Raw = msgspec.Raw(b"false")
    priority: msgspec.Raw = msgspec.Raw(b"0")
    cache_salt: msgspec.Raw = NULL
    features: msgspec.Raw = NULL
