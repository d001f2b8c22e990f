"""The request of a relayed route for a worker.

Owns: its headers, and the id in its body. Must never enter: a change of any other byte of the body.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.formats.contract import Ids, UpstreamRequest, WorkerView
from gateway.formats.headers import to_worker
from gateway.formats.json.splice import replace_member
from gateway.formats.json.steps import NewValue, spliced
from gateway.formats.relayed.request import MODEL_HEADER, RID, Request


def upstream(method: str, path: str, request: Request, worker: WorkerView, ids: Ids) -> UpstreamRequest:
    """Return the client's request with the dispatch id in its header, and in ``rid`` if the body has it.

    An engine that reads the id from the body only, and finds none there, makes one of its own.
    """
    lines = to_worker(request.headers, worker.authorization)
    headers = [line for line in lines if line[0] not in (MODEL_HEADER, b"x-request-id")]
    headers.append((b"x-request-id", ids.dispatch[0].encode()))
    body, rest = _with_id(request, ids)
    return UpstreamRequest(method.encode(), worker.prefix + path.encode(), headers, body, rest)


def _with_id(request: Request, ids: Ids) -> tuple[bytes, Sequence[memoryview]]:
    if request.member != RID or not ids.private:
        return request.body, ()
    value = msgspec.json.encode(ids.dispatch[0])
    if request.spans is not None:
        return b"", spliced(request.body, [NewValue(RID, value, request.spans)])
    return replace_member(request.body, RID, value), ()
