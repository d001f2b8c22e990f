"""SGLang's reply documents, as far as they are looked at.

Owns: the typed views that they are decoded into. Must never enter: functions; this module is not compiled, as
that would cost the views what is said of them in their heads.
"""

from __future__ import annotations

import msgspec

#: Stands for a member that a document does not have.
ABSENT = msgspec.Raw()


class Finish(msgspec.Struct, gc=False):
    """Why a sample ended; ``status_code`` where it ended in an error."""

    type: str = ""
    status_code: int | None = None


class Meta(msgspec.Struct, gc=False):
    """What a document counts, as running totals of its sample."""

    finish_reason: Finish | None = None
    completion_tokens: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int | None = None


class Document(msgspec.Struct, gc=False):
    """One sample's part of a reply, as far as it is looked at."""

    meta_info: Meta | None = None
    index: int | None = None
    error: msgspec.Raw = ABSENT
    routing_data: msgspec.Raw = ABSENT
