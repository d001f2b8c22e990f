"""What a cheap look at a request body finds.

Owns: its shape. Must never enter: functions over it; this module is not compiled, as that would cost the
structs what is said of them in their heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.formats.json.windows import Span

#: Stands for a member that the body does not have.
ABSENT = msgspec.Raw()
#: One byte for each entry of a list: 1 where it is ``marked``. All there is to know of it, as the entries
#: themselves would take a hundred times the room of a body that is full of short ones.
Marks = bytes | bytearray


class Sampling(msgspec.Struct):
    n: int = 1
    max_new_tokens: int | None = None
    beam_width: int | None = None


class Samplings:
    """What counts of a list of them: the first, how many, and the most tokens that any of them asks for (None
    where one leaves that open, 0 for an empty list)."""

    __slots__ = ("count", "first", "most")

    def __init__(self, entries: Sequence[Sampling] = ()) -> None:
        self.first = Sampling()
        self.count = 0
        self.most: int | None = 0
        for entry in entries:
            self.add(entry)

    def add(self, entry: Sampling) -> None:
        limit = entry.max_new_tokens
        if not self.count:
            self.first, self.most = entry, limit
        elif limit is None or self.most is None:
            self.most = None
        else:
            self.most = max(self.most, limit)
        self.count += 1


class Peek(msgspec.Struct):
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
    return_sampling_mask: msgspec.Raw = ABSENT
    sampling_logprobs_mode: msgspec.Raw = ABSENT
    lora_path: msgspec.Raw = ABSENT
    lora_id: msgspec.Raw = ABSENT
    custom_logit_processor: msgspec.Raw = ABSENT
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


class BigPeek(Peek):
    """A peek at a body too big for one go, with what was found in its members on the way.

    ``marks``: of those that are big lists. ``samplings``: of big parameters that are a list. ``rid_spans``:
    where in the body the values of all its rids stand, ``rid_cuts``: the whole members.
    """

    marks: dict[str, Marks] = {}
    samplings: Samplings | None = None
    rid_spans: Sequence[Span] = ()
    rid_cuts: Sequence[Span] = ()
