"""The requests sent to a vLLM server: generate, and aborts; and what a client's own abort call names.

Owns: paths, headers and bodies of these calls (vLLM 0.33.0). Must never enter: changing a generate body,
which is sent byte for byte, as this engine takes its id from a header.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from gateway.errors import InvalidRequest
from gateway.formats.contract import Headers, Ids, UpstreamRequest, WorkerView
from gateway.formats.headers import of_own_call, to_worker
from gateway.formats.optional import AbortTarget, RelayedRequest
from gateway.formats.vllm.ids import abort_target, engine_id, engine_ids_at
from gateway.formats.vllm.request import Request

GENERATE_PATH = "/inference/v1/generate"
ABORT_PATH = "/inference/v1/abort_requests"

_GENERATE = GENERATE_PATH.encode()
_ABORT = ABORT_PATH.encode()


def upstream(request: Request, worker: WorkerView, ids: Ids) -> UpstreamRequest:
    """Return the client's request with the dispatch id."""
    lines = to_worker(request.headers, worker.authorization)
    headers = [line for line in lines if line[0] != b"x-request-id"]
    headers.append((b"x-request-id", ids.dispatch[0].encode()))
    return UpstreamRequest(b"POST", worker.prefix + _GENERATE, headers, request.body)


def abort(worker: WorkerView, request: Request, ids: Ids) -> tuple[UpstreamRequest, ...]:
    """Return the abort of a request. The engine knows all samples by one id, and only in its own spelling."""
    if ids.parts:
        return ()
    return (_abort(worker, request.headers, map(engine_id, ids.dispatch)),)


def abort_relayed(
    worker: WorkerView, path: str, request: RelayedRequest, ids: Ids
) -> tuple[UpstreamRequest, ...]:
    """Return the abort of a request to a relayed route, which takes its id from the header and spells it
    in its own way.
    """
    engine_ids = [] if request.beam_search else engine_ids_at(path, ids, one_prompt=request.one_prompt)
    return (_abort(worker, request.headers, engine_ids),) if engine_ids else ()


def _abort(worker: WorkerView, client_headers: Headers, ids: Iterable[str]) -> UpstreamRequest:
    headers = of_own_call(client_headers, worker.authorization)
    body = msgspec.json.encode({"request_ids": list(ids)})
    return UpstreamRequest(b"POST", worker.prefix + _ABORT, headers, body)


def aborted_ids(body: bytes) -> AbortTarget:
    """Return what a client's abort call names. Raises InvalidRequest, with the engine's text where it has
    one.
    """
    try:
        call: Any = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"JSON decode error: {error}", cause=error) from error
    names = call.get("request_ids") if isinstance(call, dict) else None
    if names is None:
        raise InvalidRequest("Missing 'request_ids' in request body")
    if isinstance(names, str):
        names = [names]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InvalidRequest("'request_ids' must be a string or a list of strings", param="request_ids")
    return abort_target(names)
