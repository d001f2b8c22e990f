"""The one table of a worker's states."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gateway.fleet.states import TRANSITIONS, WorkerEvent, WorkerState

PAGE = Path(__file__).parents[2] / "docs" / "fleet.md"
READY, BUSY, SUSPECT, HELD = WorkerState.READY, WorkerState.BUSY, WorkerState.SUSPECT, WorkerState.CORDONED
DEAD, JOINING, DRAINING = WorkerState.DEAD, WorkerState.JOINING, WorkerState.DRAINING

events = st.lists(st.sampled_from(WorkerEvent), max_size=30)


def after(state: WorkerState, *happened: WorkerEvent) -> WorkerState:
    for event in happened:
        state = TRANSITIONS[state].get(event, state)
    return state


@given(events)
def test_cordoned_worker_becomes_usable_through_uncordon_alone(happened: list[WorkerEvent]) -> None:
    """However good its probes are. (One that died is cordoned again by Fleet.apply_event.)"""
    ends = (WorkerEvent.UNCORDON, WorkerEvent.DIE, WorkerEvent.CANNOT, WorkerEvent.DRAIN)
    without = [event for event in happened if event not in ends]
    assert after(HELD, *without) is HELD
    assert after(HELD, *without, WorkerEvent.UNCORDON) is READY


@given(events)
def test_worker_that_only_reports_to_be_full_never_counts_as_dead(happened: list[WorkerEvent]) -> None:
    reported = [event for event in happened if event in (WorkerEvent.FULL, WorkerEvent.SERVES)]
    assert after(READY, *reported) in (READY, BUSY)


@given(events)
def test_draining_worker_gets_nothing_new_unless_it_is_registered_again(happened: list[WorkerEvent]) -> None:
    without = [event for event in happened if event is not WorkerEvent.JOIN]
    assert after(DRAINING, *without) in (DRAINING, WorkerState.GONE)
    assert after(DRAINING, WorkerEvent.JOIN) is JOINING


@given(events)
def test_gone_is_final(happened: list[WorkerEvent]) -> None:
    assert after(WorkerState.GONE, *happened) is WorkerState.GONE


def test_every_member_can_be_drained_and_a_good_probe_clears_everything_but_a_cordon() -> None:
    for state in set(WorkerState) - {WorkerState.GONE}:
        assert after(state, WorkerEvent.DRAIN, WorkerEvent.LEAVE) is WorkerState.GONE
    for state in (JOINING, BUSY, SUSPECT, DEAD):
        assert after(state, WorkerEvent.SERVES) is READY


def test_table_in_the_documentation_is_the_transition_table() -> None:
    """docs/fleet.md: a row per state, a column per event, - where nothing changes."""
    table = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    start = next(index for index, line in enumerate(table) if line.startswith("| state | serves"))
    columns = [WorkerEvent(name.strip()) for name in table[start].strip("| ").split("|")[1:]]
    assert set(columns) == set(WorkerEvent)
    rows = [re.sub("`", "", line).strip("| ").split("|") for line in table[start + 2 :][: len(WorkerState)]]
    shown = {
        WorkerState(state.strip()): {
            event: WorkerState(cell.strip())
            for event, cell in zip(columns, cells, strict=True)
            if cell.strip() != "-"
        }
        for state, *cells in rows
    }
    assert shown == {state: dict(row) for state, row in TRANSITIONS.items()}
