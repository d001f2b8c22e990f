"""What a server says of itself: its identity, its card, its load and the events of its cache."""

from __future__ import annotations

import json
from dataclasses import replace

from gateway.cards.structural_tag import OFF
from gateway.cards.token_budget import TokenBudget
from gateway.cards.values import CardValues
from gateway.formats.optional import WorkerLoad
from gateway.formats.sglang import FORMAT as SGLANG
from gateway.formats.trtllm import FORMAT
from gateway.formats.trtllm.kv_events import BlockEvents, Removed, Stored, read_events
from gateway.formats.trtllm.probes import METRICS, PROMETHEUS
from gateway.formats.vllm import FORMAT as VLLM
from gateway.formats.worker_contract import ProbeReply, WorkerInfo
from tests.formats.support import records


def reply(name: str) -> ProbeReply:
    record = records("trtllm", "control")[name]
    return ProbeReply(record["status"], record["body"].encode())


#: The card of a server that says nothing of its size.
SERVES = CardValues(capabilities=("trtllm_completions_tokens",))
SERVER = {"/version": reply("version"), "/v1/models": reply("models"), "/server_info": reply("server-info")}


def test_server_is_identified_by_its_list_of_models_and_by_no_other_format() -> None:
    assert FORMAT.identify(SERVER) == WorkerInfo(
        engine="trtllm",
        capability=FORMAT.capability,
        usable=True,
        version="1.2.1",
        models=("tiny",),
        stream_mode="delta",
        card=SERVES,
    )
    assert FORMAT.card_defaults.structural_tag == OFF
    assert FORMAT.identify({"/version": SERVER["/version"]}) is None
    others = {
        "/inference/v1/generate": ProbeReply(404, b'{"detail":"Not Found"}'),
        "/generate": ProbeReply(404, b'{"detail":"Not Found"}'),
        **SERVER,
    }
    for other in (SGLANG, VLLM):
        assert other.identify(others) is None


def test_card_has_what_the_metrics_say() -> None:
    """A budget only with a length that was set; the engine refuses prompts over it and cuts replies short."""
    info = FORMAT.identify({**SERVER, "/prometheus/metrics": reply("prometheus")})
    assert info is not None
    assert info.card == replace(
        SERVES,
        context_length=2048,
        kv_cache_block_size=32,
        total_kv_blocks=100,
        max_num_seqs=64,
        token_budget=TokenBudget(2048, reject_prompt_overflow=True, reject_total_overflow=False),
    )
    for name in ("prometheus-no-length", "metrics"):
        without = FORMAT.identify({**SERVER, "/prometheus/metrics": reply(name)})
        assert without is not None and without.card == SERVES


def test_load_is_read_where_reading_takes_nothing_away_or_else_from_the_iterations() -> None:
    """Of the iterations the latest of each rank counts; none since the last reading means nothing runs."""
    assert FORMAT.loads == (PROMETHEUS, METRICS)
    assert (PROMETHEUS.once, METRICS.once) == (False, True)
    assert FORMAT.read_load(PROMETHEUS, reply("prometheus")) == WorkerLoad(5, 1, 0.5)
    assert FORMAT.read_load(PROMETHEUS, ProbeReply(404, b"")) is None
    assert FORMAT.read_load(METRICS, reply("metrics")) == WorkerLoad(5, 1, 0.6)
    assert FORMAT.read_load(METRICS, reply("metrics-idle")) == WorkerLoad(0, 0)
    assert FORMAT.read_load(METRICS, ProbeReply(200, b"{}")) is None


def test_events_of_the_cache_are_typed_and_an_unknown_one_is_a_gap() -> None:
    events = read_events(reply("kv-events"))
    assert events is not None
    assert [event.event_id for event in events] == [0, 1, 2, 3, 4, 6, 7]
    stored = events[2]
    assert isinstance(stored.data, Stored) and stored.attention_dp_rank == 0
    assert [(block.block_hash, block.token_ids) for block in stored.data.blocks] == [
        (-11, [1, 2]),
        (12, [3, 4]),
        (13, [5]),
    ]
    assert read_events(ProbeReply(404, b"")) is read_events(ProbeReply(200, b"{}")) is None


def test_blocks_of_images_have_no_token_ids() -> None:
    image = {"block_hash": 1, "tokens": [{"token_id": 5, "token_extra_id": 9}, {"token_id": "media"}]}
    data = {"type": "stored", "blocks": [image]}
    body = json.dumps([{"event_id": 0, "data": data, "window_size": None}]).encode()
    [event] = read_events(ProbeReply(200, body)) or []
    assert isinstance(event.data, Stored) and event.data.blocks[0].token_ids is None


def test_only_full_blocks_of_the_largest_window_count() -> None:
    """The removal of a block that was left out is left out, at its own rank only."""
    events = BlockEvents(block_size=2).of(read_events(reply("kv-events")) or ())
    assert [event.event_id for event in events] == [2, 6, 7]
    stored, removed, other = events
    assert isinstance(stored.data, Stored) and [block.block_hash for block in stored.data.blocks] == [-11, 12]
    assert (removed.data, other.data) == (Removed([12]), Removed([13]))
