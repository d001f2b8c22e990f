"""A seed determines a run: its faults and its clients' requests."""

from __future__ import annotations

from collections import Counter
from itertools import islice

from tests.chaos.run.choices import WEIGHTS, choices
from tests.chaos.run.dialects import output_of, prompt_of
from tests.chaos.run.expected import Expected, Wrong
from tests.chaos.run.plan import FAULTS, plan
from tests.chaos.run.worker import MOODS


def test_seed_reproduces_faults_and_choices() -> None:
    assert plan("7", 60, 4) == plan("7", 60, 4)
    assert plan("7", 60, 4) != plan("8", 60, 4)
    assert list(islice(choices("7"), 50)) == list(islice(choices("7"), 50))
    assert list(islice(choices("7"), 50)) != list(islice(choices("8"), 50))


def test_every_kind_of_fault_comes_within_a_short_run() -> None:
    for seed in range(50):
        assert {fault.what for fault in plan(str(seed), 18, 4)} == set(FAULTS)


def test_worker_has_one_fault_at_a_time_and_none_at_the_end() -> None:
    for seed in range(50):
        faults = plan(str(seed), 40, 4)
        assert all(fault.until < 40 for fault in faults)
        for worker in range(4):
            own = [fault for fault in faults if fault.worker == worker]
            assert all(before.until <= after.at for before, after in zip(own, own[1:], strict=False))


def test_every_mood_of_the_plan_is_known_to_the_workers() -> None:
    assert set(MOODS) < set(FAULTS)
    assert len(set(FAULTS) - set(MOODS)) == 4


def test_clients_do_everything_there_is() -> None:
    assert set(Counter(choice.what for choice in islice(choices("1"), 500))) == set(WEIGHTS)


def test_reply_of_another_request_is_noticed() -> None:
    """The tokens, the id or the end differ."""
    tokens = output_of(prompt_of("a", 4), 2)
    right = b'{"output_ids": %s, "meta_info": {"id": "a", "finish_reason": {"type": "length"}}}'
    complete = Expected("sglang", "a", tokens)
    complete.part(right % str(tokens).encode())
    complete.check()
    for id, text in (("a", str(output_of(prompt_of("b", 4), 2))), ("b", str(tokens)), ("a", str(tokens[:1]))):
        reply = Expected("sglang", id, tokens)
        try:
            reply.part(right % text.encode())
            reply.check()
        except Wrong:
            continue
        raise AssertionError(f"{text} was taken for {tokens}")
