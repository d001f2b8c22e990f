"""One sample of a stream that is being joined: its merged object, and the fast path for the usual event.

Owns: which events are usual. Must never enter: what a rule does, facts.

Nearly every event of a long stream brings new tokens of one known sample and nothing else. Decoding it into a
fixed struct costs a fraction of a look at each of its keys, and gives the same result: what does not fit that
struct exactly takes the slow path.
"""

from __future__ import annotations

import msgspec

from gateway.formats.vllm.join.merged_object import Members, MergedObject, Parts, Sequence
from gateway.formats.vllm.join.rules import CHOICE

_ABSENT = msgspec.Raw()


class UsualLogprobs(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    content: msgspec.Raw


class UsualChoice(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """New tokens, and a null for whatever a sample has at its end only."""

    index: int
    token_ids: msgspec.Raw
    finish_reason: None = None
    stop_reason: None = None
    routed_experts: None = None
    sampling_mask: None = None
    weight_versions: None = None
    text: msgspec.Raw = _ABSENT
    logprobs: UsualLogprobs | None = None


class UsualEvent(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    choices: tuple[UsualChoice]
    request_id: str = ""
    usage: None = None
    output_mode: str = ""


class MergedSample:
    """The merged object of one sample."""

    __slots__ = ("_content", "_merged", "_ids", "_text")

    def __init__(self) -> None:
        self._merged = MergedObject(CHOICE)
        self._ids: Sequence | None = None
        self._text: Sequence | None = None
        self._content: Sequence | None = None

    def add(self, members: Members) -> None:
        """Add any event of the sample."""
        self._merged.add(members)
        self._ids = self._merged.sequence("token_ids")
        self._text = self._merged.sequence("text")
        self._content = self._merged.sequence("logprobs", "content")

    def add_usual(self, choice: UsualChoice) -> bool:
        """Add a usual event. Return False, with nothing added, if it needs ``add``."""
        ids, text, logprobs, content = self._ids, choice.text, choice.logprobs, self._content
        if ids is None or (text and self._text is None) or (logprobs is not None and content is None):
            return False
        ids.add(bytes(choice.token_ids))
        if text and self._text is not None:
            self._text.add(bytes(text))
        if logprobs is not None and content is not None:
            content.add(bytes(logprobs.content))
        return True

    def parts(self) -> Parts:
        return self._merged.parts()
