"""The members of SGLang's reply documents that the gateway reads (SGLang 0.5.22).

Owns: the typed structs they are decoded into. Must never enter: functions; this module is not compiled,
because msgspec needs the struct definitions as Python classes.
"""

from __future__ import annotations

import msgspec

#: The value of a member that a document does not have.
ABSENT = msgspec.Raw()


class Finish(msgspec.Struct, gc=False):
    """The reason why a sample ended; ``status_code`` if it ended in an error."""

    type: str = ""
    status_code: int | None = None


class Meta(msgspec.Struct, gc=False):
    """The counts of a document, which are running totals of its sample."""

    finish_reason: Finish | None = None
    completion_tokens: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


class Document(msgspec.Struct, gc=False):
    """One sample's part of a reply."""

    meta_info: Meta | None = None
    index: int | None = None
    error: msgspec.Raw = ABSENT
    routing_data: msgspec.Raw = ABSENT
