"""A scripted client like TRL: one base URL of a vLLM server for everything, called from threads.

Owns: its calls, urllib3's retries, its checks of a reply. Must never enter: a judgement of the gateway.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tests.clients.libraries import JSON, requests_session, spaced

_AGAIN = (500, 502, 503)


class TRL:
    """TRL. ``base`` may have a path. ``pause`` is the time between two tries, in seconds."""

    THREADS, STATUS_TRIES, READ_TRIES = 64, 3, 5
    model_name = "sim"

    def __init__(self, base: str, pause: float = 1.0) -> None:
        self.base = base.rstrip("/")
        self.pause = pause
        self.http = requests_session(self.THREADS)

    def __enter__(self) -> TRL:
        return self

    def __exit__(self, *error: object) -> None:
        self.http.close()

    # The server.

    def connect(self) -> tuple[str, int]:
        """Read the name of the served model and its longest sequence."""
        self._get("/health")
        card = self._get("/v1/models").json()["data"][0]
        return card["id"], card["max_model_len"]

    def server_info(self) -> Any:
        return self._get("/server_info?config_format=json").json()

    def world_size(self) -> int:
        return int(self._get("/get_world_size").json()["world_size"])

    # Completions.

    def complete(self, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
        """Complete all prompts in one call; return the choices in their order."""
        body = {
            "model": self.model_name,
            "prompt": [list(prompt) for prompt in prompts],
            "max_tokens": tokens,
            "logprobs": 0,
            "return_token_ids": True,
        }
        choices = self.post("/v1/completions", body).json()["choices"]
        assert [choice["index"] for choice in choices] == list(range(len(prompts)))
        return [choice["token_ids"] for choice in choices]

    def look(self, conversations: Sequence[Sequence[Any]], tokens: int) -> list[list[int]]:
        """Run conversations with images, each rendered and then generated, in many threads."""
        with ThreadPoolExecutor(self.THREADS) as threads:
            return list(threads.map(lambda messages: self._look(messages, tokens), conversations))

    def _look(self, messages: Sequence[Any], tokens: int) -> list[int]:
        chat = {"model": self.model_name, "messages": list(messages)}
        rendered = self.post("/v1/chat/completions/render", chat).json()
        body = {
            "request_id": uuid.uuid4().hex,
            "model": self.model_name,
            "token_ids": rendered["token_ids"],
            "features": rendered["features"],
            "sampling_params": {"max_tokens": tokens, "logprobs": 0, "output_kind": 2},
        }
        choice = self.post("/inference/v1/generate", body).json()["choices"][0]
        assert len(choice["logprobs"]["content"]) == len(choice["token_ids"])
        return list(choice["token_ids"])

    # Weights, over the same URL.

    def set_up_transfer(self, rank_offset: int = 1) -> None:
        info = {
            "master_address": "10.0.0.1",
            "master_port": 29500,
            "rank_offset": rank_offset,
            "world_size": 2,
        }
        self.post("/init_weight_transfer_engine", {"init_info": info})

    def transfer(self, version: str) -> None:
        """Run one weight transfer, with the engine paused around it."""
        self.post("/pause?mode=keep", {})
        self.post("/start_weight_update", {"is_checkpoint_format": True})
        self.post("/update_weights", {"update_info": {"names": ["w"], "shapes": [[2, 2]]}})
        self.post("/finish_weight_update", {"weight_version": version})
        self.post("/reset_prefix_cache", {})
        self.post("/resume", {})

    def load_adapter(self, name: str, path: str) -> None:
        self.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path, "load_inplace": True})

    # HTTP.

    def _get(self, path: str) -> httpx.Response:
        return self.http.get(f"{self.base}{path}").raise_for_status()

    def post(self, path: str, body: Any) -> httpx.Response:
        """Send a request; retry some statuses and broken connections with the same bytes."""
        content = spaced(body)
        statuses, reads = self.STATUS_TRIES, self.READ_TRIES
        while True:
            try:
                response = self.http.post(f"{self.base}{path}", content=content, headers=JSON)
                if response.status_code not in _AGAIN or not statuses:
                    return response.raise_for_status()
                statuses -= 1
            except httpx.TransportError:
                if not reads:
                    raise
                reads -= 1
            time.sleep(self.pause)
