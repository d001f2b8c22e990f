"""The public schema of ``/generate``, for documentation.

Owns: field names, types and what they mean, as of SGLang 0.5.22. Must never enter: the hot path; requests are
never validated against these models, so a field they lack still reaches the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from gateway.formats.openapi import header_parameter, schema_of

TokenIds = list[int]
Media = str | dict[str, Any] | list[Any]


class SamplingParams(BaseModel):
    """How to sample. The engine refuses keys it does not know."""

    model_config = ConfigDict(extra="allow")

    max_new_tokens: int | None = Field(128, ge=0, description="null: as many as fit into the context")
    min_new_tokens: int = 0
    temperature: float = Field(1.0, ge=0, description="0 is greedy")
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(-1, description="-1 takes all")
    min_p: float = Field(0.0, ge=0, le=1)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    repetition_penalty: float = Field(1.0, gt=0, le=2)
    n: int = Field(1, description="Samples of each prompt; over 1 the reply is a list and has ids of its own")
    beam_width: int | None = Field(None, ge=1)
    stop: str | list[str] | None = None
    stop_token_ids: TokenIds | None = None
    stop_regex: str | list[str] | None = None
    ignore_eos: bool = False
    json_schema: str | None = Field(None, description="A JSON schema as a string")
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    stream_interval: int | None = None
    logit_bias: dict[str, float] | None = None
    sampling_seed: int | None = None
    custom_params: dict[str, Any] | None = None
    watermark: dict[str, Any] | None = None


class GenerateRequest(BaseModel):
    """A prompt (text, token ids or embeddings) or a list of prompts. Unknown keys are forwarded."""

    model_config = ConfigDict(extra="allow")

    input_ids: TokenIds | list[TokenIds] | None = None
    text: str | list[str] | None = None
    input_embeds: list[list[float]] | list[list[list[float]]] | None = None
    sampling_params: SamplingParams | list[SamplingParams] | None = None
    stream: bool | None = False
    routed_dp_rank: int | None = Field(None, description="Data-parallel rank that is to serve it")
    rid: str | list[str] | None = Field(None, description="Request id; without one X-Request-Id counts")
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: int | list[int] | None = Field(None, description="-1: generated tokens only")
    top_logprobs_num: int | list[int] | None = None
    token_ids_logprob: TokenIds | list[TokenIds] | None = None
    return_text_in_logprobs: bool = False
    return_flat_raw_top_logprobs: bool = False
    return_flat_raw_output_top_logprobs: bool = False
    return_flat_raw_top_logprobs_b64: bool = False
    return_sampling_mask: bool | list[bool] | None = None
    sampling_logprobs_mode: str | list[str | None] | None = None
    return_hidden_states: bool | str | list[bool | str] = False
    return_routed_experts: bool = False
    routed_experts_start_len: int = 0
    return_indexer_topk: bool = False
    return_entropy: bool = False
    return_prompt_token_ids: bool = False
    image_data: Media | None = None
    video_data: Media | None = None
    audio_data: Media | None = None
    mm_hashes: list[str] | list[list[str]] | None = None
    mm_content_hashes: list[str | None] | list[list[str | None]] | None = None
    use_audio_in_video: bool = False
    video_config: dict[str, Any] | None = None
    images_config: dict[str, Any] | None = None
    modalities: list[str] | None = None
    max_dynamic_patch: int | None = None
    min_dynamic_patch: int | None = None
    image_max_dynamic_patch: int | None = None
    video_max_dynamic_patch: int | None = None
    session_id: str | None = None
    session_params: dict[str, Any] | None = None
    lora_path: str | list[str | None] | None = None
    custom_logit_processor: str | list[str | None] | None = None
    watermark: dict[str, Any] | list[dict[str, Any] | None] | None = None
    priority: int | None = Field(
        None, description="Larger runs first unless the engine is configured otherwise"
    )
    routing_key: str | None = None
    conversation_id: str | None = None
    extra_key: str | list[str] | None = None
    cache_salt: str | list[str] | None = None
    kv_hints: dict[str, Any] | list[dict[str, Any] | None] | None = None
    background: bool = Field(False, description="True: the engine does not stop when the client leaves")
    require_reasoning: bool = False
    max_thinking_tokens: int | None = None
    custom_labels: dict[str, str] | None = None
    log_metrics: bool = True
    no_logs: bool = False
    multi_item_delimiter_indices: TokenIds | list[TokenIds] | None = None
    token_indices_to_pool: TokenIds | list[TokenIds] | None = None


class FinishReason(BaseModel):
    """Why a sample ended; null in the events before that."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="stop, length or abort")
    matched: int | str | None = Field(None, description="What stopped it: a token id, a string or a regex")
    length: int | None = None
    message: str | None = None
    status_code: int | None = None


class MetaInfo(BaseModel):
    """Facts about one sample; more keys appear with the options that ask for them."""

    model_config = ConfigDict(extra="allow")

    id: str
    finish_reason: FinishReason | None
    prompt_tokens: int | None = None
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    cached_tokens: int = 0
    weight_version: str | None = None
    e2e_latency: float | None = Field(None, description="Seconds")
    input_token_logprobs: list[list[Any]] | None = Field(
        None, description="[logprob, token id, text or null]"
    )
    output_token_logprobs: list[list[Any]] | None = Field(
        None, description="[logprob, token id, text or null]"
    )


class Generation(BaseModel):
    """One sample. Its ids end with the stop token, its text does not."""

    model_config = ConfigDict(extra="allow")

    text: str | None = Field(None, description="Absent where the engine has no tokenizer")
    output_ids: TokenIds | None = Field(None, description="What was generated; new ids or all so far")
    meta_info: MetaInfo
    index: int | None = Field(None, description="In streams of several samples: which one")


class ErrorDetail(BaseModel):
    message: str


class ErrorBody(BaseModel):
    """The gateway's own error reply. An engine's own errors are relayed unchanged."""

    error: ErrorDetail


_UNARY = {"input_ids": [432, 402, 5], "sampling_params": {"max_new_tokens": 3, "temperature": 0}}
_STREAM = _UNARY | {"rid": "4f0c9d1e5a7b4c3d8e9f0a1b2c3d4e5f", "stream": True}
_META = {
    "id": "4f0c9d1e5a7b4c3d8e9f0a1b2c3d4e5f",
    "finish_reason": {"type": "length", "length": 3},
    "prompt_tokens": 3,
    "completion_tokens": 3,
    "cached_tokens": 2,
    "weight_version": "default",
}
_REPLY = {"text": "j1\n", "output_ids": [78, 21, 203], "meta_info": _META}
_EVENTS = (
    'data: {"text":"j","output_ids":[78],"meta_info":{"id":"4f0c9d1e5a7b4c3d8e9f0a1b2c3d4e5f",'
    '"finish_reason":null,"prompt_tokens":3,"completion_tokens":1,"cached_tokens":2}}\n\n'
    'data: {"text":"j1","output_ids":[78,21],"meta_info":{"id":"4f0c9d1e5a7b4c3d8e9f0a1b2c3d4e5f",'
    '"finish_reason":{"type":"length","length":2},"prompt_tokens":3,"completion_tokens":2,"cached_tokens":2}}\n\n'
    "data: [DONE]\n\n"
)
_ON_STREAMS = (
    "With `stream: true` a series of server-sent events, each `data: ` and a generation as in the unary "
    "reply, then `data: [DONE]`. Text, ids and logprobs of an event are all so far, or only what is new, as "
    "the engine was started. Events of several samples interleave and carry `index`. A failure after the "
    'stream began is one `data: {"error": ...}` event before `[DONE]`.'
)


def operation() -> Mapping[str, Any]:
    """Return the OpenAPI operation object of ``/generate``, without references."""
    generation = schema_of(Generation)
    return {
        "summary": "Generate from text, token ids or embeddings (SGLang native API)",
        "description": _ON_STREAMS,
        "parameters": [
            header_parameter("X-Request-Id", "Id of the request, if the body has no `rid`."),
            header_parameter("X-Data-Parallel-Rank", "Takes precedence over `routed_dp_rank`."),
        ],
        "requestBody": {"required": True, "content": {"application/json": _request()}},
        "responses": {
            "200": {
                "description": "The generation; a list of them for a list of prompts or n > 1.",
                "content": {
                    "application/json": {
                        "schema": {"anyOf": [generation, {"type": "array", "items": generation}]},
                        "example": _REPLY,
                    },
                    "text/event-stream": {"schema": {"type": "string"}, "example": _EVENTS},
                },
            },
            "default": {
                "description": "The request could not be served.",
                "content": {"application/json": {"schema": schema_of(ErrorBody)}},
            },
        },
    }


def _request() -> dict[str, Any]:
    examples = {
        "unary": {"summary": "One reply", "value": _UNARY},
        "stream": {"summary": "Events as tokens are made", "value": _STREAM},
    }
    return {"schema": schema_of(GenerateRequest), "examples": examples}
