"""The public schema of requests and replies, for the OpenAPI page.

Owns: the fields a user may send and receives, with their meaning. Must never enter: the path of a request;
nothing is validated with these models, as the engine judges its own fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gateway.formats.openapi import header_parameter, schema_of


class _Open(BaseModel):
    """Base of models whose other fields are allowed."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())


class StreamOptions(_Open):
    include_usage: bool | None = Field(True, description="One more event per prompt, with its usage.")
    continuous_usage_stats: bool | None = False


class CompletionRequest(_Open):
    """One prompt of token ids, or several. The engine refuses fields that it does not know."""

    model: str
    prompt: list[int] | list[list[int]] | str | list[str]
    max_tokens: int | None = None
    min_tokens: int = 0
    n: int = 1
    best_of: int | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = Field(None, description="In streams only.")
    detokenize: bool = Field(
        False, description="True for text instead of `token_ids`. The gateway adds false."
    )
    temperature: float | None = None
    top_p: float | None = None
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    logprobs: int | None = None
    logit_bias: dict[str, float] | None = None
    presence_penalty: float | None = 0.0
    frequency_penalty: float | None = 0.0
    repetition_penalty: float = 1.0
    use_beam_search: bool = False
    truncate_prompt_tokens: int | None = Field(None, ge=1)
    response_format: dict[str, Any] | None = None
    lora_request: dict[str, Any] | None = None
    disaggregated_params: dict[str, Any] | None = None
    priority: float | None = Field(None, ge=0, le=1, description="Larger runs first; 0.5 if left out.")


class Choice(_Open):
    index: int = Field(
        description="Of several prompts: the number of the prompt times `n`, plus the sample's."
    )
    text: str = Field("", description="Empty with `token_ids`.")
    token_ids: list[int] | None = Field(None, description="New tokens; in a stream since the last event.")
    logprobs: dict[str, Any] | None = None
    finish_reason: Literal["stop", "length", "cancelled", "timeout", "not_finished"] | None = None
    stop_reason: int | str | None = None
    avg_decoded_tokens_per_iter: float | None = None


class Usage(_Open):
    prompt_tokens: int = 0
    total_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: dict[str, Any] | None = None


class CompletionReply(_Open):
    id: str = Field(description="Made up by the engine.")
    object: str = "text_completion"
    created: int = Field(description="Unix time, in seconds.")
    model: str
    choices: list[Choice]
    usage: Usage | None = None


class ErrorReply(BaseModel):
    object: str = "error"
    message: str
    type: str
    param: str | None = None
    code: int


_STREAM_NOTE = (
    "Answered when `stream` is true: server-sent events `data: {...}`, one choice each, with the tokens since"
    " the event before; `data: [DONE]` ends every stream. A failure after the start is one event"
    ' `data: {"error": {"message", "type", "code", "param"}}` before that end.'
)
_ERRORS = {
    "400": "The request cannot be served as it is.",
    "404": "No worker serves the model.",
    "413": "The body is over the limit.",
    "502": "A worker failed or its reply was broken.",
    "503": "No worker is free to take the request; see `Retry-After`.",
    "504": "A worker was silent for longer than is allowed.",
}
_REQUEST = {"model": "m", "prompt": [1, 15043, 29892], "max_tokens": 2, "temperature": 0, "detokenize": False}
_HEAD = {"id": "cmpl-1", "object": "text_completion", "created": 1790000000, "model": "m"}
_CHOICE = {"index": 0, "text": "", "token_ids": [590, 1024], "finish_reason": "length", "stop_reason": None}
_REPLY = {
    **_HEAD,
    "choices": [_CHOICE],
    "usage": {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2},
}
_STREAM = (
    'data: {"id":"cmpl-1","object":"text_completion","created":1790000000,"model":"m","choices":'
    '[{"index":0,"text":"","token_ids":[590],"finish_reason":null,"stop_reason":null}],"usage":null}\n\n'
    'data: {"id":"cmpl-1","object":"text_completion","created":1790000000,"model":"m","choices":'
    '[{"index":0,"text":"","token_ids":[1024],"finish_reason":"length","stop_reason":null}],"usage":null}\n\n'
    "data: [DONE]\n\n"
)


def openapi() -> Mapping[str, Any]:
    """Return the OpenAPI operation of the endpoint, without references."""
    content = {
        "application/json": {"schema": schema_of(CompletionReply), "examples": {"unary": {"value": _REPLY}}},
        "text/event-stream": {
            "schema": {"type": "string", "description": _STREAM_NOTE},
            "examples": {"stream": {"value": _STREAM}},
        },
    }
    examples = {"unary": {"value": _REQUEST}, "stream": {"value": {**_REQUEST, "stream": True}}}
    request = {"schema": schema_of(CompletionRequest), "examples": examples}
    errors = {"application/json": {"schema": schema_of(ErrorReply)}}
    return {
        "summary": "Generate from token ids (TensorRT-LLM)",
        "description": "The completions API of TensorRT-LLM, with token ids in and token ids out.",
        "parameters": [header_parameter("X-Request-Id", "Id of the request, for logs and aborts.")],
        "requestBody": {"required": True, "content": {"application/json": request}},
        "responses": {
            "200": {"description": f"The reply. {_STREAM_NOTE}", "content": content},
            **{status: {"description": text, "content": errors} for status, text in _ERRORS.items()},
        },
    }
