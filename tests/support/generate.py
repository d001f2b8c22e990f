"""Generate requests and stream events in the dialects of the two built-in formats."""

from __future__ import annotations

from typing import Any

#: Kind of engine -> the path of its generate endpoint.
KINDS = {"sglang": "/generate", "vllm": "/inference/v1/generate"}
#: Kind of engine -> the member with the token ids of the prompt.
PROMPT = {"sglang": "input_ids", "vllm": "token_ids"}
#: Kind of engine -> the member with the largest number of tokens to generate.
LIMIT = {"sglang": "max_new_tokens", "vllm": "max_tokens"}
#: Kind of engine -> the path of its abort call, and the member of a request that is its client's id.
ABORT = {"sglang": "/abort_request", "vllm": "/inference/v1/abort_requests"}
ID = {"sglang": "rid", "vllm": "request_id"}
JSON = {"content-type": "application/json"}


def body_of(kind: str, tokens: int = 3, stream: bool = False, **extra: object) -> dict[str, object]:
    """A small request in the dialect of ``kind``."""
    return {
        PROMPT[kind]: [1, 15043, 29892],
        "stream": stream,
        "sampling_params": {LIMIT[kind]: tokens, "temperature": 0},
        **extra,
    }


def event_of(kind: str, number: int) -> bytes:
    """A stream event of about 250 bytes, as the engine of ``kind`` sends it."""
    if kind == "sglang":
        text = (
            f'{{"text":" t","output_ids":[{number}],"meta_info":{{"id":"x","finish_reason":null,'
            f'"prompt_tokens":3,"weight_version":"default","num_retractions":0,"reasoning_tokens":0,'
            f'"completion_tokens":{number},"cached_tokens":0,"cached_tokens_details":null,"dp_rank":null}}}}'
        )
    else:
        text = (
            '{"request_id":"generate-tokens-x","usage":null,"output_mode":"tokens","choices":[{"index":0,'
            f'"finish_reason":null,"stop_reason":null,"token_ids":[{number}],"routed_experts":null,'
            '"sampling_mask":null,"weight_versions":null,"logprobs":null}]}'
        )
    return f"data: {text}\n\n".encode()


def abort_of(kind: str, name: str) -> dict[str, object]:
    """The body of a call that aborts what runs under ``name``."""
    return {"rid": name} if kind == "sglang" else {"request_ids": [name]}


def finish_of(kind: str, document: Any) -> str:
    """Why a reply, or the last event of a stream, ended."""
    if kind == "sglang":
        return str(document["meta_info"]["finish_reason"]["type"])
    return str(document["choices"][0]["finish_reason"])
