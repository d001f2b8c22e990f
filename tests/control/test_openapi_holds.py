"""The control plane replies as its OpenAPI document declares, to any call that the document allows."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.core.result import Ok
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from gateway.sim import SimConfig, SimServer
from tests.support.gateway import rig

Operation = APIOperation[Any, Any, Any, Any]

#: Calls of each operation, unless there is only one way to call it.
CALLS = 8
#: Seconds that a call may take; with workers that reply, none takes one second.
PATIENCE = 10
#: The endless route, and the tags of routes that belong to the engines.
ENDLESS = "/workers/events"
NOT_CONTROL = {"generate", "inference"}
#: Tags of routes that relay replies of engines, including their failures.
ENGINES_OWN = {"control", "information"}


@pytest.mark.timeout(240)
async def test_control_plane_replies_as_its_document_declares() -> None:
    """No 500, no undeclared status, no undeclared body."""
    local = ("127.0.0.1",)
    async with SimServer("sglang", SimConfig()) as one, SimServer("vllm", SimConfig()) as other:
        async with rig(one.url, other.url, allow_worker_url=local) as gateway:
            statuses = await asyncio.to_thread(_call_all, f"{gateway.url}/openapi.json")
    assert sum(statuses.values()) > 30 * CALLS
    assert {200, 400, 404} <= set(statuses)


def _call_all(document: str) -> Counter[int]:
    statuses: Counter[int] = Counter()
    for operation in _operations(document):
        _call(operation, statuses)
    return statuses


def _operations(document: str) -> Iterator[Operation]:
    for found in schemathesis.openapi.from_url(document).get_all_operations():
        assert isinstance(found, Ok), found.err()
        operation = found.ok()
        if operation.path != ENDLESS and _tags(operation).isdisjoint(NOT_CONTROL):
            yield operation


def _tags(operation: Operation) -> set[str]:
    return set(operation.definition.raw.get("tags", ()))


def _call(operation: Operation, statuses: Counter[int]) -> None:
    @settings(
        max_examples=CALLS,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy())
    def call(case: Any) -> None:
        response = case.call(timeout=PATIENCE)
        statuses[response.status_code] += 1
        assert b"internal error" not in response.content and b"Traceback" not in response.content
        checks = [status_code_conformance]
        if not _tags(operation) & ENGINES_OWN:
            assert response.status_code != 500
            checks.append(response_schema_conformance)
        case.validate_response(response, checks=checks)

    call()
