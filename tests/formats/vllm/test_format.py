"""The format as a whole: its name, its settings, its registration."""

from __future__ import annotations

import pytest

from gateway.formats.registry import load_formats
from gateway.formats.vllm import FORMAT, VllmFormat


def test_format_is_found_by_its_name() -> None:
    """Under the name that settings and metrics use."""
    assert load_formats()["vllm"].name == FORMAT.name == "vllm"


def test_settings_make_a_format_of_their_own() -> None:
    """The one that was asked keeps its own; nothing asked changes nothing."""
    passing = FORMAT.configured({"passthrough_engine_errors": "true"})
    assert passing == VllmFormat(passthrough=True)
    assert passing.configured({}) is passing
    assert passing.configured({"passthrough_engine_errors": "false"}) == FORMAT == VllmFormat()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("stream_mode", "engine", "stream_mode: this format has no such setting"),
        ("passthrough_engine_errors", "yes", "passthrough_engine_errors: must be true or false, not 'yes'"),
        ("passthrough_engine_errors", "", "passthrough_engine_errors: must be true or false, not ''"),
    ],
)
def test_setting_that_makes_no_sense_is_named(name: str, value: str, said: str) -> None:
    """Whoever starts the gateway reads what to change."""
    with pytest.raises(ValueError, match=said):
        FORMAT.configured({name: value})
