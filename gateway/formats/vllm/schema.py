"""The public schema of requests and replies, for the OpenAPI page.

Owns: the fields a user may send and receives, with their meaning (vLLM 0.33.0). Must never enter: the path of
a request; nothing is validated with these models, as the engine judges its own fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gateway.formats.openapi import header_parameter, schema_of


class _Open(BaseModel):
    """Base of models whose other fields are allowed."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())


class StructuredOutputs(_Open):
    """Exactly one of ``json`` ... ``structural_tag``; needs a tokenizer."""

    json_schema: str | dict[str, Any] | None = Field(None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None


class SamplingParams(_Open):
    """How to sample; keys the engine does not know are ignored by it."""

    n: int = Field(1, ge=1, description="Replies wanted; must be 1 when temperature is 0.")
    max_tokens: int | None = Field(None, ge=1, description="Left out or null: up to the context's end.")
    min_tokens: int = Field(0, ge=0)
    temperature: float = Field(1.0, ge=0, le=2, description="0 is greedy.")
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, description="0 or -1: off.")
    min_p: float = Field(0.0, ge=0, le=1)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    repetition_penalty: float = Field(1.0, gt=0)
    repetition_detection: dict[str, int] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    bad_words: list[str] | None = None
    allowed_token_ids: list[int] | None = None
    logit_bias: dict[int, float] | None = None
    logprobs: int | None = Field(None, ge=-1, description="0: of the sampled token only.")
    prompt_logprobs: int | None = Field(None, ge=-1, description="Not delivered in streams.")
    logprob_token_ids: list[int] | None = None
    flat_logprobs: bool = False
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    stream_interval: int | None = Field(None, ge=1, description="Tokens an event, from the second on.")
    structured_outputs: StructuredOutputs | None = None
    thinking_token_budget: int | None = None
    skip_reading_prefix_cache: bool | None = None
    routed_experts_prompt_start: int = Field(0, ge=0)
    extra_args: dict[str, Any] | None = None


class StreamOptions(_Open):
    include_usage: bool | None = Field(False, description="One more event with the usage, before the end.")
    continuous_usage_stats: bool | None = False


class GenerateRequest(_Open):
    """One prompt of token ids. The header ``X-Request-Id`` takes precedence over ``request_id``."""

    token_ids: list[int] = Field(min_length=1, description="The prompt.")
    sampling_params: SamplingParams
    request_id: str = Field("", description="Comes back as ``generate-tokens-<request_id>``.")
    model: str | None = Field(None, description="Base model when empty; an adapter's name selects it.")
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    priority: int = Field(0, description="Lower runs first.")
    cache_salt: str | None = Field(None, min_length=1, max_length=128)
    features: dict[str, Any] | None = Field(None, description="Prepared multimodal input.")
    content_parts: list[dict[str, Any]] | None = Field(None, description="Media for the server to fetch.")
    token_offsets: list[tuple[int, int]] | None = None
    return_token_ids: bool | None = None
    output_mode: Literal["tokens", "text", "derender"] = "tokens"
    parse_context: dict[str, Any] | None = None
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: dict[str, Any] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None


class TokenLogprob(_Open):
    logprob: float
    token_id: int | None = None
    rank: int | None = None
    token: str | None = Field(None, description="In text mode, instead of the id and the rank.")
    bytes: list[int] | None = None


class ContentLogprob(TokenLogprob):
    top_logprobs: list[TokenLogprob] = []


class Logprobs(_Open):
    content: list[ContentLogprob] | None = None


class WeightVersions(_Open):
    version: str
    start: int
    end: int


class GenerateChoice(_Open):
    index: int
    finish_reason: Literal["stop", "length", "abort", "repetition"] | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = Field(None, description="New tokens; in a stream since the last event.")
    text: str | None = Field(None, description="In text mode.")
    routed_experts: str | None = Field(None, description="Base64 of an .npy file.")
    sampling_mask: list[list[int]] | None = None
    weight_versions: list[WeightVersions] | None = None
    logprobs: Logprobs | None = None


class Usage(_Open):
    prompt_tokens: int = 0
    total_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: dict[str, Any] | None = None
    completion_tokens_details: dict[str, Any] | None = None


class GenerateReply(_Open):
    request_id: str
    model: str | None = None
    created: int | None = Field(None, description="Unix time, in seconds.")
    usage: Usage | None = None
    prompt_logprobs: list[dict[int, Any] | None] | None = None
    prompt_token_id_logprobs: str | None = None
    prompt_token_ids: list[int] | None = None
    mm_placeholders: dict[str, Any] | None = None
    metrics: dict[str, Any] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    output_mode: Literal["tokens", "text", "derender"] = "tokens"
    choices: list[GenerateChoice]


class ErrorInfo(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: int


class ErrorEnvelope(BaseModel):
    error: ErrorInfo


_STREAM_NOTE = (
    "Answered when `stream` is true: server-sent events `data: {...}`, one choice each, with the tokens since"
    " the event before; `data: [DONE]` ends every stream. A failure after the start is one event"
    ' `data: {"error": {"message", "type", "param", "code"}}` before that end.'
)
_ERRORS = {
    "400": "The request cannot be served as it is.",
    "404": "No worker serves the model.",
    "413": "The body is over the limit.",
    "502": "A worker failed or its reply was broken.",
    "503": "No worker is free to take the request; see `Retry-After`.",
    "504": "A worker was silent for longer than is allowed.",
}
_UNARY_REQUEST = {
    "token_ids": [1, 15043, 29892],
    "sampling_params": {"max_tokens": 2, "temperature": 0},
    "request_id": "job-1",
}
_UNARY_REPLY = {
    "request_id": "generate-tokens-job-1",
    "model": "m",
    "created": 1790000000,
    "usage": {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2},
    "output_mode": "tokens",
    "choices": [
        {
            "index": 0,
            "finish_reason": "length",
            "stop_reason": None,
            "token_ids": [590, 1024],
            "logprobs": None,
        }
    ],
}
_STREAM_REPLY = (
    'data: {"request_id":"generate-tokens-job-1","usage":null,"output_mode":"tokens","choices":'
    '[{"index":0,"finish_reason":null,"stop_reason":null,"token_ids":[590],"logprobs":null}]}\n\n'
    'data: {"request_id":"generate-tokens-job-1","usage":null,"output_mode":"tokens","choices":'
    '[{"index":0,"finish_reason":"length","stop_reason":null,"token_ids":[1024],"logprobs":null}]}\n\n'
    "data: [DONE]\n\n"
)


def openapi() -> Mapping[str, Any]:
    """Return the OpenAPI operation of the generate endpoint, without references."""
    return {
        "summary": "Generate from token ids (vLLM)",
        "description": "The native generate API of vLLM: one prompt of token ids in, token ids out.",
        "parameters": [
            header_parameter("X-Request-Id", "Id of the request; takes precedence over `request_id`."),
            header_parameter("X-Data-Parallel-Rank", "Rank of the engine that is to serve it."),
        ],
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": schema_of(GenerateRequest),
                    "examples": {
                        "unary": {"value": _UNARY_REQUEST},
                        "stream": {"value": {**_UNARY_REQUEST, "stream": True}},
                    },
                }
            },
        },
        "responses": {
            "200": {
                "description": f"The reply. {_STREAM_NOTE}",
                "content": {
                    "application/json": {
                        "schema": schema_of(GenerateReply),
                        "examples": {"unary": {"value": _UNARY_REPLY}},
                    },
                    "text/event-stream": {
                        "schema": {"type": "string", "description": _STREAM_NOTE},
                        "examples": {"stream": {"value": _STREAM_REPLY}},
                    },
                },
            },
            **{status: _error(description) for status, description in _ERRORS.items()},
        },
    }


def _error(description: str) -> dict[str, Any]:
    return {
        "description": description,
        "content": {"application/json": {"schema": schema_of(ErrorEnvelope)}},
    }
