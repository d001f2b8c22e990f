"""Streams of one sample in both modes, for the tests of join and conversion."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.formats.support import DONE, compact

Document = dict[str, Any]

PER_TOKEN: dict[str, Callable[[int], Any]] = {
    "output_token_logprobs": lambda token: [-0.5 * token, token, None],
    "output_top_logprobs": lambda token: [[-1.0, token, "]"], [-2.0, token + 1, '"[']],
    "output_token_ids_logprobs": lambda token: None if token % 2 else [[-3.0, 9, None]],
    "output_token_sampling_mask": lambda token: [token, token + 1],
    "output_token_sampling_logprobs": lambda token: -0.25 * token,
    "custom_score": lambda token: f"score {token}",
}


def complete(ids: list[int], text: str, finish: Document | None = None, **more: Any) -> Document:
    """Return the reply with all that is known once ``ids`` were generated."""
    meta: Document = {"id": "a1", "finish_reason": finish, "prompt_tokens": 3, "cached_tokens": 2}
    meta["input_token_logprobs"] = [[None, 1, None], [-0.5, 2, None]]
    meta |= {name: [make(token) for token in ids] for name, make in PER_TOKEN.items()}
    meta |= {"output_token_logprobs_length": len(ids), "completion_tokens": len(ids), "reasoning_tokens": 0}
    if finish is not None:
        meta |= {
            "weight_versions": [{"version": "v1", "start": 0, "end": len(ids)}],
            "routed_experts": "AAECAw==",
        }
    return {"text": text, "output_ids": ids, "meta_info": meta, **more}


def part(later: Document, earlier: Document) -> Document:
    """Return what an incremental stream sends of ``later`` after ``earlier``."""
    before = len(earlier["output_ids"])
    meta = later["meta_info"]
    cut = {name: meta[name][before:] for name in PER_TOKEN if name in meta}
    return later | {
        "text": later["text"][len(earlier["text"]) :],
        "output_ids": later["output_ids"][before:],
        "meta_info": meta | cut,
    }


def cumulative(*states: Document) -> list[Document]:
    return [dict(state) for state in states]


def incremental(*states: Document) -> list[Document]:
    parts = [part(later, earlier) for earlier, later in zip(states, states[1:], strict=False)]
    return [dict(states[0]), *parts]


def echo(state: Document) -> Document:
    """Return the frontend's reply to a request aborted in the queue, in a cumulative stream."""
    meta = state["meta_info"]
    kept = ("id", "output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs")
    result = {name: meta[name] for name in (*kept, "input_token_logprobs", "output_token_logprobs_length")}
    result |= {
        "finish_reason": {"type": "abort", "message": "Abort in waiting queue"},
        "weight_version": "v1",
    }
    return state | {"meta_info": result | {"completion_tokens": len(state["output_ids"])}}


def echo_part(state: Document) -> Document:
    """Return the same in an incremental stream: the last id again, all else in full."""
    return echo(state) | {"output_ids": state["output_ids"][-1:]}


def events(documents: list[Document]) -> bytes:
    return b"".join(b"data: %b\n\n" % compact(document) for document in documents) + DONE


def documents(stream: bytes) -> list[Document]:
    return [json.loads(event[6:]) for event in stream.split(b"\n\n") if event and event != b"data: [DONE]"]


#: A life: text lags behind its ids, one event has two tokens, the last has no text.
STATES = (
    complete([7], " a"),
    complete([7, 8], " a"),
    complete([7, 8, 7, 9], ' a\u00e9"\\\n'),
    complete([7, 8, 7, 9, 2], ' a\u00e9"\\\n', {"type": "stop", "matched": 2}),
)
