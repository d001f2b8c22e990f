"""The fields of a generate body that the gateway reads: some typed, some kept as raw JSON, the rest skipped.

Owns: decoding them, the lists of reserved and per-prompt fields. Must never enter: judging what was found
(projection.py). Source of both lists: GenerateReqInput of SGLang 0.5.22.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

import msgspec

from gateway.errors import InvalidRequest
from gateway.formats.json.ids import STAND_IN, cut_ids
from gateway.formats.sglang.prompt_ids import PromptIds
from gateway.formats.sglang.raw_members import NULL
from gateway.formats.sglang.request import ABSENT, BodyFields, EntryFlags, LargeBodyFields, Sampling

T = TypeVar("T")

#: Fields that clients may not set (null sets nothing), in the order in which they are checked.
RESERVED = (
    "bootstrap_info",
    "bootstrap_host",
    "bootstrap_port",
    "bootstrap_room",
    "bootstrap_pair_key",
    "decode_tp_size",
    "disaggregated_params",
    "disagg_prefill_dp_rank",
    "external_trace_header",
    "received_time",
)
#: For prompt i of a batch the Python server takes entry i of these lists without a check of their length. It
#: does so with other fields as well, but those the Rust server accepts.
PER_PROMPT = ("return_logprob", "logprob_start_len", "top_logprobs_num", "video_data", "audio_data")
#: Those of them that the Rust server accepts as empty lists.
MEDIA = frozenset({"video_data", "audio_data"})


_RAW = frozenset(BodyFields.__struct_fields__) - {"rid", "stream", "sampling_params"}

_NO_TEXT = msgspec.Raw(b'""')
_TRUE = msgspec.Raw(b"true")
_OUTPUT_ONLY = msgspec.Raw(b"-1")
_NEGATIVE = re.compile(rb"-0*[1-9]")
#: The condition for which the entries of each list are searched; of other lists only the length is needed.
_FLAGGED: Mapping[str, Callable[[msgspec.Raw], bool]] = MappingProxyType(
    {
        "text": lambda raw: raw == _NO_TEXT,
        "logprob_start_len": lambda raw: _NEGATIVE.match(raw) is not None and raw != _OUTPUT_ONLY,
        "return_logprob": lambda raw: raw == _TRUE,
    }
)

_STAND_IN = msgspec.Raw(STAND_IN)


def _raws(name: str, of: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Return a struct with the fields of ``of``, each of them raw JSON."""
    return msgspec.defstruct(name, [(field, msgspec.Raw, ABSENT) for field in of.__struct_fields__])


def _present(members: msgspec.Struct) -> Mapping[str, msgspec.Raw]:
    """Return those of the raw ``members`` that the object had."""
    found = msgspec.structs.asdict(members)
    return {name: value for name, value in found.items() if value is not ABSENT}


_decode = msgspec.json.Decoder(BodyFields).decode
# Structs and not mappings: a mapping would require that the names of skipped members are UTF-8, too.
_raw_fields = msgspec.json.Decoder(_raws("RawPeek", BodyFields)).decode
_raw_sampling = msgspec.json.Decoder(_raws("RawSampling", Sampling)).decode
_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_rid = msgspec.json.Decoder(str | list[str] | None).decode
_bool = msgspec.json.Decoder(bool).decode
_int = msgspec.json.Decoder(int).decode


def read_fields(body: bytes) -> tuple[BodyFields, PromptIds | None]:
    """Return the fields of ``body``, and the count of ``input_ids`` where that is a long list.

    Raises InvalidRequest, msgspec.DecodeError or RecursionError.
    """
    cut = cut_ids(body, b'"input_ids"')
    if cut is not None:
        try:
            fields = _decode(cut.rest)
        except (msgspec.DecodeError, RecursionError):
            pass  # reported for the entire body below
        else:
            if fields.input_ids == _STAND_IN:
                start, end = cut.span
                fields.input_ids = msgspec.Raw(memoryview(body)[start:end])
                return fields, PromptIds(cut.ids)
    try:
        return _decode(body), None
    except msgspec.ValidationError:
        # A field has another type than usual, possibly one that a later field of the same name replaces.
        return _by_member(body), None


def is_flagged(name: str, raw: msgspec.Raw) -> bool:
    """Return True if ``raw``, a field or an entry of it, is an empty text, a start below -1 or true."""
    test = _FLAGGED.get(name)
    return test is not None and test(raw)


def entry_flags(fields: BodyFields, name: str) -> EntryFlags | None:
    """Return one flag for each entry of the list in field ``name``, None if that is no list."""
    if isinstance(fields, LargeBodyFields) and name in fields.entry_flags:
        return fields.entry_flags[name]
    entries = items(getattr(fields, name))
    return None if entries is None else bytes([is_flagged(name, entry) for entry in entries])


def items(raw: msgspec.Raw) -> list[msgspec.Raw] | None:
    """Return the entries of a list, None for anything else."""
    return _items(raw) if _begins(raw, b"[") else None


def _by_member(body: bytes) -> BodyFields:
    try:
        members = _raw_fields(body)
    except msgspec.ValidationError as error:
        raise not_an_object(error) from error
    fields = BodyFields()
    fill(fields, _present(members))
    return fields


def not_an_object(cause: BaseException | None = None) -> InvalidRequest:
    return InvalidRequest("The request body must be a JSON object.", cause=cause)


def fill(fields: BodyFields, members: Mapping[str, msgspec.Raw]) -> None:
    """Set ``fields`` from ``members``, raw JSON by name. Raises InvalidRequest and msgspec.DecodeError.

    A member that is null is not set; only of ``rid`` it is remembered, as its place is where an id is put.
    """
    for key in members.keys() & _RAW:
        setattr(fields, key, members[key])
    if (stream := members.get("stream", NULL)) != NULL:
        fields.stream = _typed(_bool, stream, "stream", "a boolean")
    if (raw := members.get("rid")) is not None:
        fields.rid = _typed(_rid, raw, "rid", "a string or a list of strings")
    if (raw := members.get("sampling_params")) is not None:
        entries = items(raw)
        if entries is not None:
            fields.sampling_params = [sampling_of(entry) for entry in entries]
        else:
            fields.sampling_params = sampling_of(raw) if raw != NULL else None


def sampling_of(raw: msgspec.Raw) -> Sampling:
    """Return the sampling parameters in ``raw``; the defaults if it is no object, which the engine will
    refuse.
    """
    sampling = Sampling()
    members = _present(_raw_sampling(raw)) if _begins(raw, b"{") else {}
    if (n := members.get("n", NULL)) != NULL:
        sampling.n = _typed(_int, n, "sampling_params.n", "an integer")
    sampling.max_new_tokens = _integer(members.get("max_new_tokens"))
    sampling.beam_width = _integer(members.get("beam_width"))
    return sampling


def _begins(raw: msgspec.Raw, bracket: bytes) -> bool:
    return memoryview(raw)[:1] == bracket


def _typed(decode: Callable[[msgspec.Raw], T], raw: msgspec.Raw, param: str, wanted: str) -> T:
    try:
        return decode(raw)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{param} must be {wanted}.", param=param, cause=error) from error


def _integer(raw: msgspec.Raw | None) -> int | None:
    try:
        return None if raw is None else _int(raw)
    except msgspec.ValidationError:
        return None
