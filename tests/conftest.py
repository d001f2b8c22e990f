"""Fixtures of all tests: the event loop the product runs on, and an environment without its settings."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the gateway is served on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in list(os.environ):  # noqa: TID251 - removing what the product would read
        if name.startswith("DYN_"):
            monkeypatch.delenv(name)
    yield
