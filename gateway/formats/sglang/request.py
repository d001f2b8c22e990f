"""A parsed generate request, the fields of its body, and the body of an abort call.

Owns: the structs. Must never enter: work that is done for every request. This module is not compiled, because
msgspec needs the struct definitions as Python classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gateway.formats.contract import UNKNOWN_LENGTH, Headers
from gateway.formats.json.windows import Span
from gateway.formats.sglang.prompt_ids import MOST_LENGTHS

#: The value of a field that the body does not have.
ABSENT = msgspec.Raw()
#: One byte for each entry of a list: 1 where ``is_flagged`` holds. The entries themselves would take a
#: hundred times the memory of a body that is full of short ones.
EntryFlags = bytes | bytearray


class Sampling(msgspec.Struct):
    n: int = 1
    max_new_tokens: int | None = None
    beam_width: int | None = None


class SamplingList:
    """The summary of a list of sampling parameters: the first, their number, and the highest token limit.

    ``max_new_tokens`` is None if an entry has no limit, 0 for an empty list. ``limits`` are those of the
    first entries, 1 for an entry without one.
    """

    __slots__ = ("count", "first", "limits", "max_new_tokens")

    def __init__(self, entries: Sequence[Sampling] = ()) -> None:
        self.first = Sampling()
        self.count = 0
        self.max_new_tokens: int | None = 0
        self.limits: list[int] = []
        for entry in entries:
            self.add(entry)

    def add(self, entry: Sampling) -> None:
        limit = entry.max_new_tokens
        if not self.count:
            self.first, self.max_new_tokens = entry, limit
        elif limit is None or self.max_new_tokens is None:
            self.max_new_tokens = None
        else:
            self.max_new_tokens = max(self.max_new_tokens, limit)
        if self.count < MOST_LENGTHS:
            self.limits.append(limit or 1)
        self.count += 1


class BodyFields(msgspec.Struct):
    rid: str | list[str] | None | msgspec.UnsetType = msgspec.UNSET
    stream: bool = False
    sampling_params: Sampling | list[Sampling] | None = None
    text: msgspec.Raw = ABSENT
    input_ids: msgspec.Raw = ABSENT
    input_embeds: msgspec.Raw = ABSENT
    image_data: msgspec.Raw = ABSENT
    session_params: msgspec.Raw = ABSENT
    model: msgspec.Raw = ABSENT
    priority: msgspec.Raw = ABSENT
    cache_salt: msgspec.Raw = ABSENT
    return_logprob: msgspec.Raw = ABSENT
    logprob_start_len: msgspec.Raw = ABSENT
    top_logprobs_num: msgspec.Raw = ABSENT
    lora_path: msgspec.Raw = ABSENT
    video_data: msgspec.Raw = ABSENT
    audio_data: msgspec.Raw = ABSENT
    bootstrap_info: msgspec.Raw = ABSENT
    bootstrap_host: msgspec.Raw = ABSENT
    bootstrap_port: msgspec.Raw = ABSENT
    bootstrap_room: msgspec.Raw = ABSENT
    bootstrap_pair_key: msgspec.Raw = ABSENT
    data_parallel_rank: msgspec.Raw = ABSENT
    decode_tp_size: msgspec.Raw = ABSENT
    disaggregated_params: msgspec.Raw = ABSENT
    disagg_prefill_dp_rank: msgspec.Raw = ABSENT
    routed_dp_rank: msgspec.Raw = ABSENT
    external_trace_header: msgspec.Raw = ABSENT
    received_time: msgspec.Raw = ABSENT


class LargeBodyFields(BodyFields):
    """The fields of a body that is read in steps, with what was found in large values on the way.

    ``entry_flags``: the flags of large lists. ``sampling_list``: the summary of a large list of sampling
    parameters. ``rid_spans``: where in the body the values of all its rids stand, ``rid_cuts``: the entire
    members. ``rank_spans``: where its data-parallel rank stands. ``id_spans``: where its members stand that
    are compared with the vocabulary.
    """

    entry_flags: dict[str, EntryFlags] = {}
    sampling_list: SamplingList | None = None
    rid_spans: Sequence[Span] = ()
    rid_cuts: Sequence[Span] = ()
    rank_spans: Sequence[Span] = ()
    id_spans: Mapping[str, Span] = {}


class AbortCall(msgspec.Struct):
    rid: str | None = None
    abort_all: bool = False


class SglangRequest(msgspec.Struct, frozen=True):
    """One parsed request.

    ``rid``: as in the body, UNSET if the body has none. ``ids``: the ids the client gave, in the body or else
    in the header ``X-Request-Id``. ``batch``: the number of prompts, None for a single
    prompt. ``samples``: of all prompts. ``in_session``: the engine continues a session
    that it keeps. ``fields``: what the hints are read from when a policy asks for them. ``rid_spans``: where
    the values of all ``rid`` members stand in a large body, None for a body that is read at once. ``rank``:
    the data-parallel rank that the header names, None if the body names the same; ``rank_spans``: where a
    large body has one. ``longest``: that of the projection.
    """

    body: bytes
    headers: Headers
    stream: bool
    rid: str | list[str] | None | msgspec.UnsetType
    ids: tuple[str, ...]
    batch: int | None
    samples_per_prompt: int
    prompt_tokens: int | None
    max_tokens: int | None
    in_session: bool
    model: str | None
    fields: BodyFields
    samples: int
    rid_spans: Sequence[Span] | None = None
    rank: int | None = None
    rank_spans: Sequence[Span] = ()
    longest: tuple[int, int] = UNKNOWN_LENGTH

    def without_body(self) -> SglangRequest:
        """Return the request without its body and without the fields, which hold parts of it."""
        return msgspec.structs.replace(self, body=b"", fields=BodyFields())
