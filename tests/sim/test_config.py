"""The settings of a simulated engine."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from gateway.sim import SimConfig
from gateway.sim.script import _PACE_HEADERS

PAGE = (Path(__file__).parents[2] / "docs" / "simulated-engines.md").read_text()


def test_every_setting_has_help_and_is_documented() -> None:
    for setting in fields(SimConfig):
        assert setting.metadata["help"]
        assert f"`{setting.name}`" in PAGE, setting.name


def test_every_header_is_documented() -> None:
    names = [*_PACE_HEADERS, b"x-sim-drop", b"x-sim-status", b"x-sim-body"]
    for name in names:
        assert f"`{name.decode().title()}`" in PAGE, name


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("cut", "hard"),
        ("jitter", 1.5),
        ("eos_rate", -0.1),
        ("token_delay", -1),
        ("token_delay", float("nan")),
        ("max_running", 0),
        ("vocab_size", 3),
        ("port", -1),
        ("port", 65536),
    ],
)
def test_invalid_value_names_its_setting(setting: str, value: Any) -> None:
    with pytest.raises(ValueError, match=setting):
        SimConfig(**{setting: value})
