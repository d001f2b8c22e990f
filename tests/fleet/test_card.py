"""A worker's card has of each member the value of the first source that mentions it."""

from __future__ import annotations

import logging
import random
from dataclasses import replace

import pytest

from gateway.cards.structural_tag import OFF, ON
from gateway.cards.values import CardValues
from gateway.fleet.card import CardBuilder, CardSource
from gateway.fleet.changes import Change, ChangeKind
from gateway.fleet.registry import Fleet
from gateway.fleet.worker import Worker
from gateway.formats.worker_contract import WorkerInfo
from gateway.routing.policy import LeastInFlight
from gateway.stores.record import WorkerRecord
from gateway.upstream.address import Address
from gateway.upstream.connector import Connector

BUILDER = CardBuilder(CardValues(structural_tag=OFF), {"echo": CardValues(structural_tag=ON, vocab_size=9)})
ENGINE = CardValues(context_length=4096, max_num_seqs=16, weight_version="1")


def fleet_of(*workers: Worker, cards: CardBuilder = BUILDER) -> Fleet:
    fleet = Fleet(LeastInFlight(random.Random(0)), Connector(1.0), cards=cards)
    for each in workers:
        fleet.add(each)
    return fleet


def worker_of(url: str, **card: object) -> Worker:
    return Worker(Address.parse(url), record=WorkerRecord(url, card=CardValues(**card)))  # type: ignore[arg-type]


def describe(fleet: Fleet, worker: Worker, values: CardValues = ENGINE, **facts: object) -> None:
    info = WorkerInfo("eng", "cap", usable=True, models=("m",), card=values)
    fleet.describe(worker, {"echo": replace(info, **facts)})  # type: ignore[arg-type]


def test_first_source_that_mentions_a_member_counts() -> None:
    worker = worker_of("http://a:1", context_length=2048)
    fleet = fleet_of(worker)
    describe(fleet, worker)
    values, sources = worker.card.values, worker.card.sources
    of_member = {name: (getattr(values, name), source.value) for name, source in sources.items()}
    assert of_member == {
        "context_length": (2048, "registration"),
        "max_num_seqs": (16, "engine"),
        "weight_version": ("1", "engine"),
        "structural_tag": (OFF, "setting"),
        "vocab_size": (9, "default"),
        "worker_type": ("regular", "default"),
        "data_parallel_start_rank": (0, "default"),
        "data_parallel_size": (1, "default"),
        "exclude_tools_when_tool_choice_none": (True, "default"),
        "enable_eagle": (False, "default"),
    }
    assert worker.card.document["context_length"] == 2048
    fleet.replace_record(worker, WorkerRecord(worker.url, card=CardValues(vocab_size=5)), CardSource.STORE)
    assert (worker.card.values.vocab_size, worker.card.sources["vocab_size"]) == (5, CardSource.STORE)
    assert worker.card.values.context_length == 4096


def test_record_tells_role_and_bootstrap_port_and_the_url_its_rank() -> None:
    worker = worker_of("http://a:1@3")
    worker.record = WorkerRecord(worker.url, worker_type="prefill", bootstrap_port=8998)
    fleet_of(worker)
    card = worker.card.values
    assert (card.worker_type, card.bootstrap_port) == ("prefill", 8998)
    assert (card.data_parallel_start_rank, card.data_parallel_size) == (3, 1)


def test_each_change_of_a_card_is_a_version_and_an_event_and_nothing_else_is() -> None:
    worker = worker_of("http://a:1")
    fleet = fleet_of(worker)
    assert worker.card.version == 1
    with fleet.follow() as changes:
        describe(fleet, worker)
        known = worker.card
        assert (known.version, changes.get_nowait()) == (2, Change.now(ChangeKind.CARD, worker))
        describe(fleet, worker)
        describe(fleet, worker, reason="a note")
        fleet.replace_record(worker, WorkerRecord(worker.url, priority=3), CardSource.STORE)
        assert worker.card is known and changes.empty()
        describe(fleet, worker, replace(ENGINE, weight_version="2"))
        assert worker.card.version == 3 and changes.get_nowait() == Change.now(ChangeKind.CARD, worker)


def test_model_with_values_of_its_own_has_a_card_of_its_own() -> None:
    worker = worker_of("http://a:1", max_num_seqs=4)
    fleet = fleet_of(worker)
    describe(fleet, worker, model_cards={"long": CardValues(context_length=9999, max_num_seqs=99)})
    card = worker.card
    assert card.of_model(None) is card.of_model("m") is card
    own = card.of_model("long")
    assert (own.values.context_length, own.values.max_num_seqs, own.version) == (9999, 4, card.version)
    assert own.values.weight_version == "1"
    describe(fleet, worker, model_cards={"long": CardValues(context_length=9998)})
    assert worker.card.version == card.version + 1


def test_usable_format_counts_first_and_all_tell_what_is_served() -> None:
    worker = worker_of("http://a:1")
    fleet = fleet_of(worker)
    info = WorkerInfo("eng", "cap", usable=False, models=("m",), card=CardValues(("a",), context_length=1))
    served = replace(info, usable=True, card=CardValues(("b",), context_length=2))
    fleet.describe(worker, {"other": info, "echo": served})
    assert (worker.card.values.context_length, worker.card.values.capabilities) == (2, ("b", "a"))


def test_workers_of_one_model_whose_cards_differ_are_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    """A member that one of them does not mention is no difference; nor are cards of other models."""
    caplog.set_level(logging.WARNING)
    a, b, c = (worker_of(f"http://{name}:1") for name in "abc")
    fleet = fleet_of(a, b, c, cards=CardBuilder())
    describe(fleet, a, CardValues(context_length=4096, tool_call_parser="hermes"))
    describe(fleet, b, CardValues(context_length=4096))
    describe(fleet, c, CardValues(context_length=1), models=("other",))
    assert not caplog.records and not a.card_conflicts
    for _ in range(3):
        describe(fleet, b, CardValues(context_length=2048, tool_call_parser="hermes"))
    (line,) = caplog.messages
    assert "workers of the model m have cards that differ in context_length: 2048 for http://b:1" in line
    assert [each.card_conflicts for each in (a, b, c)] == [("context_length",), ("context_length",), ()]
    describe(fleet, c, CardValues(tool_call_parser="qwen"))
    assert "differ in tool_call_parser: qwen for http://c:1, hermes for" in caplog.messages[1]
    assert a.card_conflicts == ("context_length", "tool_call_parser")
    fleet.drain(b)
    assert [each.card_conflicts for each in (a, b, c)] == [("tool_call_parser",), (), ("tool_call_parser",)]
    fleet.drain(c)
    assert not a.card_conflicts and len(caplog.messages) == 2


def test_worker_that_serves_another_model_now_is_compared_with_the_workers_of_that() -> None:
    """Even if its card says the same as before."""
    a, b = (worker_of(f"http://{name}:1") for name in "ab")
    fleet = fleet_of(a, b, cards=CardBuilder())
    describe(fleet, a, CardValues(context_length=4096))
    describe(fleet, b, CardValues(context_length=2048), models=("other",))
    assert not a.card_conflicts
    describe(fleet, b, CardValues(context_length=2048))
    assert a.card_conflicts == b.card_conflicts == ("context_length",)


@pytest.mark.parametrize(
    ("member", "values"),
    [
        ("context_length", (4096, 2048)),
        ("tool_call_parser", ("hermes", "qwen")),
        ("reasoning_parser", ("qwen3", "deepseek")),
        ("structural_tag", (ON, OFF)),
    ],
)
def test_cards_differ_in_context_parsers_and_policy(member: str, values: tuple[object, object]) -> None:
    fleet = fleet_of(*(worker_of(f"http://{name}:1") for name in "ab"), cards=CardBuilder())
    for worker, value in zip(fleet.workers, values, strict=True):
        describe(fleet, worker, CardValues(**{member: value, "max_num_seqs": id(worker)}))  # type: ignore[arg-type]
    assert [worker.card_conflicts for worker in fleet.workers] == [(member,)] * 2
