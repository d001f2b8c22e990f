"""The ids in a reply.

Owns: which of them are private, and how SGLang 0.5.22 spells them. Must never enter: how they are replaced
(gateway.formats.id_mapping).
"""

from __future__ import annotations

import msgspec

from gateway.formats.contract import Ids
from gateway.formats.id_mapping import IdMapping
from gateway.formats.sglang.request import SglangRequest


def id_mapping_for(request: SglangRequest, ids: Ids) -> IdMapping | None:
    """Return the mapping from private to public ids, None if the reply contains no private id."""
    if not ids.private or request.samples_per_prompt > 1:
        return None
    if request.batch is None or isinstance(request.rid, list):
        pairs = zip(ids.dispatch, ids.public, strict=True)
        return IdMapping({_quoted(private): _quoted(public) for private, public in pairs})
    # The engine numbers the prompts of a batch: "<id>_0", "<id>_1" ...
    return IdMapping({_quoted(ids.dispatch[0])[:-1] + b"_": _quoted(ids.public[0])[:-1] + b"_"})


def _quoted(name: str) -> bytes:
    return msgspec.json.encode(name)
