"""What is sent to a worker.

Owns: the headers of the request, and the id in its body. Must never enter: touching another byte of that.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gateway.formats.contract import Ids, UpstreamRequest, WorkerView
from gateway.formats.headers import to_worker
from gateway.formats.json.splice import replace_member
from gateway.formats.json.steps import spliced
from gateway.formats.relayed.request import MODEL_HEADER, RID, Request


def upstream(path: str, request: Request, worker: WorkerView, ids: Ids) -> UpstreamRequest:
    """The client's request under the dispatch id, whichever way its engine reads it.

    An engine that knows requests by a member of the body alone, and finds none there, makes an id of its own.
    """
    lines = to_worker(request.headers, worker.authorization)
    headers = [line for line in lines if line[0] not in (MODEL_HEADER, b"x-request-id")]
    headers.append((b"x-request-id", ids.dispatch[0].encode()))
    body, rest = _with_id(request, ids)
    return UpstreamRequest(b"POST", worker.prefix + path.encode(), headers, body, rest)


def _with_id(request: Request, ids: Ids) -> tuple[bytes, Sequence[memoryview]]:
    if request.member != RID or not ids.private:
        return request.body, ()
    value = msgspec.json.encode(ids.dispatch[0])
    if request.spans is not None:
        return b"", spliced(request.body, request.spans, RID, value)
    return replace_member(request.body, RID, value), ()
