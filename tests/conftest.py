"""Fixtures of all tests: the event loop the product runs on, and an environment without its settings.

``--compiled`` is what ``make test-compiled`` says: the tests are to meet the compiled modules only.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping

import pytest
import uvloop
from hypothesis import settings

from gateway import version as build
from gateway.proxy import handler
from tests.support.guardian import Guardian
from tests.support.virtual_time import VirtualTimeLoop

#: Of tests that do not set a number of examples; chosen by ``--hypothesis-profile``.
settings.register_profile("long", max_examples=512, deadline=None)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--compiled", action="store_true", help="refuse to test anything but the compiled build")
    parser.addoption("--silence", type=float, help="seconds that engines are silent in tests of silence")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--compiled") and not build.COMPILED:
        raise pytest.UsageError(f"not the compiled build: {handler.__file__}")
    if (
        config.getoption("dist", "no") == "no"
    ):  # a process that runs tests, rather than one that hands them out
        config.add_cleanup(Guardian().close)


def pytest_report_header(config: pytest.Config) -> str:
    return f"gateway: {'compiled' if build.COMPILED else 'pure Python'}, {handler.__file__}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items if build.COMPILED else ():
        if (mark := item.get_closest_marker("pure_only")) is not None:
            item.add_marker(pytest.mark.skip(reason=f"pure Python only: {mark.kwargs['reason']}"))


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the gateway is served on, or the one of virtual time."""
    if item.get_closest_marker("virtual_time") is not None:
        return {"virtual_time": VirtualTimeLoop}
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in list(os.environ):  # noqa: TID251 - removing what the product would read
        if name.startswith("DYN_"):
            monkeypatch.delenv(name)
    yield
