"""No body breaks a simulated engine in a way that the real one would not break."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.sim import SimConfig, SimServer
from tests.sim.calls import JSON, PATHS
from tests.sim.client import ask

SCALARS = (
    st.none() | st.booleans() | st.integers(-3, 40_000) | st.floats(allow_nan=False) | st.text(max_size=4)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
)
PROMPTS = st.lists(st.integers(3, 90), min_size=1, max_size=4)
SGLANG = [
    *("rid", "text", "input_ids", "input_embeds", "sampling_params", "return_logprob", "logprob_start_len"),
    *("top_logprobs_num", "token_ids_logprob", "stream", "lora_path", "extra_key", "cache_salt", "priority"),
    *("return_prompt_token_ids", "background", "return_hidden_states", "return_text_in_logprobs"),
]
VLLM = [
    *("token_ids", "sampling_params", "request_id", "model", "stream", "stream_options", "priority"),
    *("cache_salt", "return_token_ids", "output_mode", "kv_transfer_params"),
]
SAMPLING = [
    *("max_new_tokens", "max_tokens", "min_new_tokens", "min_tokens"),
    *("temperature", "top_p", "top_k", "min_p"),
    *("n", "stop", "stop_regex", "stop_token_ids", "ignore_eos", "no_stop_trim", "logit_bias", "seed"),
    *("sampling_seed", "stream_interval", "logprobs", "prompt_logprobs", "logprob_token_ids"),
    *("allowed_token_ids", "repetition_penalty", "presence_penalty", "detokenize"),
]


def bodies(kind: str) -> st.SearchStrategy[dict[str, Any]]:
    prompt = "input_ids" if kind == "sglang" else "token_ids"
    limit = "max_new_tokens" if kind == "sglang" else "max_tokens"
    names = SGLANG if kind == "sglang" else VLLM
    odd = st.dictionaries(st.sampled_from(names), VALUES, max_size=2)
    some = st.dictionaries(st.sampled_from(SAMPLING), VALUES, max_size=2)
    params = some.map(lambda drawn: {limit: 3, **drawn})
    good = st.fixed_dictionaries({prompt: PROMPTS, "sampling_params": params})
    return st.tuples(good, odd).map(lambda pair: {**pair[0], **pair[1]})


@pytest.mark.parametrize("kind", ["sglang", "vllm"])
def test_any_json_body_is_answered_or_ends_the_engine_as_intended(kind: str) -> None:
    """A response of a known status, or the crash the real engine has; never an exception of ours."""
    broken: list[dict[str, Any]] = []

    async def send(content: bytes) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: broken.append(context))
        async with SimServer(kind, SimConfig(max_model_len=64, max_running=64)) as sim, asyncio.timeout(10):
            try:
                answer = await ask(sim.port, PATHS[kind], content, headers=JSON)
            except (ConnectionError, asyncio.IncompleteReadError, ValueError):
                # Dead of the input, or a stream cut off where the engine would raise.
                assert sim.exit_code == 1 or kind == "sglang"
            else:
                assert answer.status in (200, 400, 404, 500)

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(bodies(kind))
    def check(request: dict[str, Any]) -> None:
        asyncio.run(send(json.dumps(request).encode()))
        assert not broken

    check()
