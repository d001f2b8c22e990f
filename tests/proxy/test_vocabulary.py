"""Ids that the model of a worker does not have never reach it, where the size of its vocabulary is known."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gateway.fleet.health.model_config import SIZE_LIMIT, read_vocab_size
from gateway.sim import Reply, SimConfig, SimServer
from tests.support.gateway import generates, rig, until
from tests.support.generate import KINDS, PROMPT, body_of

SIZE = 1000


def model_in(folder: Path, size: int = SIZE) -> str:
    """A folder of a model, as far as the gateway reads it."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"vocab_size": size}))
    return str(folder)


def ids(kind: str, *tokens: int, stream: bool = False, **members: Any) -> dict[str, Any]:
    return {**body_of(kind, 2, stream), PROMPT[kind]: tokens, **members}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", KINDS)
async def test_id_outside_the_vocabulary_in_the_models_folder_is_refused(
    kind: str, stream: bool, tmp_path: Path
) -> None:
    """Small and large requests, and they leave no lease behind. Without the check the engine would die."""
    model = model_in(tmp_path / "m")
    config = SimConfig(model=model, vocab_size=SIZE, skip_tokenizer=True, max_model_len=2**20)
    async with SimServer(kind, config) as sim, rig(sim.url) as gateway:
        for pad in ("", "x" * 2**20):
            for tokens in ((1, SIZE), (SIZE + 1,), (2**31 - 1, 1), (*[7] * 400_000, SIZE)):
                body = ids(kind, *tokens, stream=stream, pad=pad)
                reply = await gateway.client.post(KINDS[kind], json=body)
                assert reply.status_code == 400 and f"0 to {SIZE - 1}" in reply.json()["error"]["message"]
            good = ids(kind, SIZE - 1, 0, stream=stream, pad=pad)
            assert (await gateway.client.post(KINDS[kind], json=good)).status_code == 200
        assert len(generates(sim)) == 2 and gateway.app.fleet.workers[0].in_flight == 0
        refused = f'requests_refused_total{{format="{kind}",rule="token_id_outside_vocabulary"}} 8'
        assert refused in (await gateway.client.get("/metrics")).text


@pytest.mark.parametrize("kind", KINDS)
async def test_workers_that_differ_are_each_sent_what_their_own_model_has(kind: str, tmp_path: Path) -> None:
    models = {size: model_in(tmp_path / str(size), size) for size in (SIZE, 2 * SIZE)}
    configs = [SimConfig(model=model, vocab_size=size) for size, model in models.items()]
    async with (
        SimServer(kind, configs[0]) as small,
        SimServer(kind, configs[1]) as large,
        rig(small.url, large.url) as gateway,
    ):
        statuses = [
            (await gateway.client.post(KINDS[kind], json=ids(kind, token, model=model))).status_code
            for token in (SIZE - 1, SIZE, 2 * SIZE)
            for model in models.values()
        ]
        assert statuses == [200, 200, 400, 200, 400, 400]
        assert (len(generates(small)), len(generates(large))) == (1, 2)


@pytest.mark.parametrize("kind", KINDS)
async def test_record_says_it_before_the_engine_and_the_engine_before_the_file(
    kind: str, tmp_path: Path
) -> None:
    """An option of the gateway is what holds for the whole fleet."""
    model = model_in(tmp_path / "m")
    reported = {"sglang": "/model_info", "vllm": "/v1/models"}[kind]
    async with SimServer(kind, SimConfig(model=model)) as sim, rig(sim.url) as gateway:
        client, worker = gateway.client, gateway.app.fleet.workers[0]

        async def described(record: Mapping[str, Any], size: int) -> None:
            """Return once the worker is known by this record."""
            await client.post("/workers", json={"url": sim.url, **record})
            await until(lambda: worker.card.values.vocab_size == size)
            assert (await client.get(f"/workers/{worker.id}")).json()["vocab_size"] == size

        await described({}, SIZE)
        document = (await client.get(f"{sim.url}{reported}")).json()
        (document["data"][0] if kind == "vllm" else document)["vocab_size"] = 500
        sim.behave(Reply(body=json.dumps(document).encode()), path=reported, times=100)
        await described({}, 500)
        await described({"vocab_size": 200}, 200)
        assert (await client.post(KINDS[kind], json=ids(kind, 200))).status_code == 400
        assert (await client.post(KINDS[kind], json=ids(kind, 199))).status_code == 200
    async with SimServer(kind, SimConfig(model=model)) as sim, rig(sim.url, vocab_size=2000) as gateway:
        statuses = [
            (await gateway.client.post(KINDS[kind], json=ids(kind, token))).status_code
            for token in (SIZE, 1999, 2000)
        ]
        assert statuses == [200, 200, 400]


async def test_placeholders_of_images_may_be_outside_the_vocabulary(tmp_path: Path) -> None:
    config = SimConfig(model=model_in(tmp_path / "m"), vocab_size=2 * SIZE)
    features: dict[str, Any] = {"mm_hashes": {}, "mm_placeholders": {}}
    async with SimServer("vllm", config) as sim, rig(sim.url) as gateway:
        await gateway.client.post(KINDS["vllm"], json=ids("vllm", SIZE, features=features))
        assert len(generates(sim)) == 1


@pytest.mark.parametrize(
    ("config", "size"),
    [
        (b'{"vocab_size":7}', 7),
        (b'{"text_config":{"vocab_size":8}}', 8),
        (b'{"vocab_size":7,"text_config":{"vocab_size":8}}', 7),
        (b'{"vocab_size":null,"text_config":{"vocab_size":8}}', 8),
        (b'{"vocab_size":0}', None),
        (b'{"vocab_size":true}', None),
        (b'{"vocab_size":"7"}', None),
        (b'{"text_config":7}', None),
        (b"[7]", None),
        (b"{", None),
        (b"\xff", None),
        (b"[" * 100_000, None),
        (b'{"vocab_size":7}' + b" " * SIZE_LIMIT, None),
    ],
)
def test_size_is_read_from_a_plain_file_of_moderate_size(
    config: bytes, size: int | None, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_bytes(config)
    assert read_vocab_size(str(tmp_path)) == size


def test_folder_without_a_plain_file_has_no_size(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    assert read_vocab_size(str(tmp_path)) is None
    assert read_vocab_size(str(tmp_path / "none")) is None
    assert read_vocab_size("a\0b") is None
