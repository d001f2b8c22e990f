"""The requests that each format sends to a worker: target, headers and keys."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.formats.sglang import FORMAT as SGLANG
from gateway.formats.vllm import FORMAT as VLLM
from tests.formats.support import PRIVATE, View

CLIENT, WORKER = (b"authorization", b"Bearer client"), (b"authorization", b"Bearer worker")

pytestmark = pytest.mark.parametrize(
    ("format", "generate", "abort"),
    [
        pytest.param(SGLANG, b"/generate", b"/abort_request", id="sglang"),
        pytest.param(VLLM, b"/inference/v1/generate", b"/inference/v1/abort_requests", id="vllm"),
    ],
)


def parsed(format: Any, *headers: tuple[bytes, bytes]) -> Any:
    return format.parse(b'{"input_ids":[1],"token_ids":[1],"sampling_params":{}}', headers)


def test_calls_are_posts_below_the_workers_prefix(format: Any, generate: bytes, abort: bytes) -> None:
    request, worker = parsed(format), View(prefix=b"/a/b")
    calls = [format.upstream(request, worker, PRIVATE), *format.abort(worker, request, PRIVATE)]
    assert [(call.method, call.target) for call in calls] == [
        (b"POST", b"/a/b" + generate),
        (b"POST", b"/a/b" + abort),
    ]


@pytest.mark.parametrize(("worker", "key"), [(View(), CLIENT), (View(authorization=WORKER[1]), WORKER)])
def test_both_calls_have_the_workers_key_or_else_the_clients(
    format: Any, generate: bytes, abort: bytes, worker: View, key: tuple[bytes, bytes]
) -> None:
    request = parsed(format, CLIENT)
    for call in (format.upstream(request, worker, PRIVATE), *format.abort(worker, request, PRIVATE)):
        assert [line for line in call.headers if line[0] == b"authorization"] == [key]
