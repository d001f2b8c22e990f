"""The prompts of a generate body.

Owns: single or batch, ids, per-prompt options, the context's length. Must never enter: types
(generate_body.py), replies, scheduling.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from gateway.sim.config import SimConfig
from gateway.sim.sglang import sampling
from gateway.sim.sglang.errors import Crash, Fault, ValueFault
from gateway.sim.sglang.generate_body import Body
from gateway.sim.sglang.sampling import Params
from gateway.sim.tokens import pack, tokenize

_NO_HIDDEN_STATES = (
    "The server is not configured to return hidden states. Please set `--return-hidden-states-mode last`, "
    "`--return-hidden-states-mode full`, or the legacy `--enable-return-hidden-states` flag."
)
_NO_INPUT = "Either text, input_ids or input_embeds should be provided."


@dataclass(frozen=True, slots=True)
class Logprobs:
    """The log probabilities that a prompt asks for. ``start`` is -1 for those of the output only."""

    start: int = -1
    top: int = 0
    ids: tuple[int, ...] = ()
    text: bool = False


@dataclass(frozen=True, slots=True)
class Item:
    """One prompt of a request."""

    rid: str
    prompt: list[int]
    packed: bytes
    params: Params
    logprobs: Logprobs | None
    namespace: str
    limit: int


@dataclass(frozen=True, slots=True)
class Request:
    """A validated generate request. ``listed``: the unary reply is a list, and stream events have an
    index.
    """

    items: list[Item]
    listed: bool
    n: int
    priority: int
    background: bool
    return_prompt: bool


def read(body: Body, config: SimConfig, loras: set[str]) -> Request:
    """Return the request in ``body``.

    Raises ValueFault for a broken rule, Fault where the engine answers 500, Crash where it crashes.
    """
    prompts, batch = _prompts(body, config)
    size = len(prompts)
    rids = _rids(body.get("rid"), size, batch)
    params = _params(body.get("sampling_params"), size, batch, config)
    n = params[0].n
    if any(other.n != n for other in params):
        raise ValueFault("The parallel_sample_num should be the same for all samples in sample params.")
    _check_rank(body)
    _check_loras(body.get("lora_path"), config, loras)
    if body.get("return_hidden_states"):
        raise ValueFault(_NO_HIDDEN_STATES)
    items = []
    for at, prompt in enumerate(prompts):
        if config.allow_auto_truncate:
            del prompt[config.max_model_len - 1 :]
        packed = _check_prompt(prompt, config)
        items.append(
            Item(
                rid=rids[at],
                prompt=prompt,
                packed=packed,
                params=params[at],
                logprobs=_logprobs(body, at, size, batch, config),
                namespace=_namespace(body, at),
                limit=_limit(len(prompt), params[at], config),
            )
        )
    return Request(
        items=items,
        listed=batch or n > 1,
        n=n,
        priority=int(body.get("priority") or 0),
        background=bool(body.get("background", False)),
        return_prompt=bool(body.get("return_prompt_token_ids", False)),
    )


def _check_rank(body: Body) -> None:
    rank = body.get("routed_dp_rank")
    if rank is None:
        rank = body.get("data_parallel_rank")
    if rank is not None and int(rank) != 0:
        raise ValueFault(f"routed_dp_rank={rank} out of range [0, 1)")


def _prompts(body: Body, config: SimConfig) -> tuple[list[list[int]], bool]:
    text, ids, embeds = body.get("text"), body.get("input_ids"), body.get("input_embeds")
    if text is None and ids is None and embeds is None:
        raise ValueFault(_NO_INPUT)
    if ids is not None:
        return _from_ids(ids, text)
    if text is not None:
        if config.skip_tokenizer:
            raise ValueFault(
                "The engine initialized with skip_tokenizer_init=True cannot accept text prompts."
            )
        texts = [text] if isinstance(text, str) else text
        if not texts or "" in texts:
            raise Crash("an empty text")
        return [tokenize(one, config.vocab_size) for one in texts], not isinstance(text, str)
    return _from_embeds(embeds)


def _from_ids(ids: list[Any], text: str | list[str] | None) -> tuple[list[list[int]], bool]:
    if not ids:
        raise ValueFault("input_ids cannot be empty.")
    if not isinstance(ids[0], list):
        return [ids], isinstance(text, list)
    if not all(ids):
        raise Crash("an empty prompt in a batch")
    return ids, True


def _from_embeds(embeds: Any) -> tuple[list[list[int]], bool]:
    if not embeds or not isinstance(embeds[0], list) or not embeds[0]:
        raise Fault("input_embeds is empty")
    batch = isinstance(embeds[0][0], list)
    rows = embeds if batch else [embeds]
    # Embeddings have no ids; their positions stand in for them.
    return [list(range(len(row))) for row in rows], batch


def _rids(rid: Any, size: int, batch: bool) -> list[str]:
    if rid is None:
        return [uuid.uuid4().hex for _ in range(size)]
    if not batch:
        if isinstance(rid, list):
            raise Fault("a list of ids for one prompt")
        return [rid]
    if isinstance(rid, str):
        return [f"{rid}_{at}" for at in range(size)]
    if len(rid) != size:
        raise ValueFault("The length of rids should be equal to the batch size.")
    if len(set(rid)) != size:
        raise ValueFault(f"Duplicate request IDs detected within the request: {rid}")
    return list(rid)


def _params(raw: Any, size: int, batch: bool, config: SimConfig) -> list[Params]:
    if not isinstance(raw, list):
        return [sampling.read(raw, config)] * size
    if not batch or len(raw) < size:
        raise Fault("sampling_params is a list of the wrong length")
    return [sampling.read(one, config) for one in raw[:size]]


def _check_loras(path: Any, config: SimConfig, loras: set[str]) -> None:
    for name in path if isinstance(path, list) else [path]:
        if not name:
            continue
        if not config.enable_lora:
            raise ValueFault(
                f"LoRA adapter '{name}' was requested, but LoRA is not enabled. Please launch the server "
                "with --enable-lora flag and preload adapters using --lora-paths or /load_lora_adapter "
                "endpoint."
            )
        if name not in loras:
            raise ValueFault(
                f"Got LoRA adapter that has never been loaded: {name}. All loaded adapters: {sorted(loras)}."
            )


def _check_prompt(prompt: list[int], config: SimConfig) -> bytes:
    try:
        packed = pack(prompt)
    except OverflowError as error:
        raise Crash("an id outside of the vocabulary") from error
    if max(prompt) >= config.vocab_size:
        raise Crash("an id outside of the vocabulary")
    if len(prompt) >= config.max_model_len:
        raise ValueFault(
            f"The input ({len(prompt)} tokens) is longer than the model's context length "
            f"({config.max_model_len} tokens)."
        )
    return packed


def _limit(prompt: int, params: Params, config: SimConfig) -> int:
    room = config.max_model_len - prompt
    wanted = params.max_new_tokens
    if wanted is None:
        return room
    if wanted > room and params.explicit_max and not config.allow_auto_truncate:
        raise ValueFault(
            f"Requested token count exceeds the model's maximum context length of {config.max_model_len} "
            f"tokens. You requested a total of {prompt + wanted} tokens: {prompt} tokens from the input "
            f"messages and {wanted} tokens for the completion. Please reduce the number of tokens in the "
            "input messages or the completion to fit within the limit."
        )
    return min(wanted, room)


def _logprobs(body: Body, at: int, size: int, batch: bool, config: SimConfig) -> Logprobs | None:
    if not _at(body.get("return_logprob"), at, size, batch):
        return None
    start = _at(body.get("logprob_start_len"), at, size, batch)
    start = -1 if start is None else start
    top = _at(body.get("top_logprobs_num"), at, size, batch) or 0
    if start < -1 or top > config.vocab_size:
        raise Crash("log probabilities out of range")
    ids = body.get("token_ids_logprob") or []
    if ids and isinstance(ids[0], list):
        ids = ids[at]
    for token in ids or ():
        if not 0 <= token < config.vocab_size:
            raise ValueFault(
                f"token_ids_logprob contains out-of-vocabulary token id {token}; "
                f"valid range is [0, {config.vocab_size})."
            )
    text = bool(body.get("return_text_in_logprobs", False)) and not config.skip_tokenizer
    return Logprobs(start=start, top=top, ids=tuple(ids or ()), text=text)


def _at(value: Any, at: int, size: int, batch: bool) -> Any:
    """Return one prompt's option: the value for all prompts, or its entry of a list."""
    if not isinstance(value, list):
        return value
    if not batch or len(value) < size:
        raise Fault("an option is a list of the wrong length")
    return value[at]


def _namespace(body: Body, at: int) -> str:
    """Return the cache namespace: adapter, extra key and salt."""
    parts = []
    for name in ("lora_path", "extra_key", "cache_salt"):
        value = body.get(name)
        one = value[at] if isinstance(value, list) and at < len(value) else value
        parts.append(one if isinstance(one, str) else "")
    return "\0".join(parts) if any(parts) else ""
