"""A parsed generate request, and the fields of its body.

Owns: which fields are read. Must never enter: work that is done for every request. This module is not
compiled, because msgspec needs the struct definitions as Python classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.formats.contract import Headers
from gateway.formats.json.windows import Span

NULL = msgspec.Raw(b"null")


class Request(msgspec.Struct, frozen=True, gc=False):
    """One parsed request. ``name`` is the id that its client gave, None if it gave none.

    ``id_cuts``: where the members with the id stand in a large body, None for a body that is read at once.
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
        """Return the request without its body and without what only hints are made of."""
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
    """The fields of Body as raw JSON, whatever their types are."""

    token_ids: msgspec.Raw = msgspec.Raw()
    sampling_params: msgspec.Raw = msgspec.Raw(b"{}")
    request_id: msgspec.Raw = NULL
    model: msgspec.Raw = NULL
    stream: msgspec.Raw = msgspec.Raw(b"false")
    priority: msgspec.Raw = msgspec.Raw(b"0")
    cache_salt: msgspec.Raw = NULL
    features: msgspec.Raw = NULL
