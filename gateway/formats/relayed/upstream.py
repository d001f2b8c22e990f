"""What is sent to a worker.

Owns: the headers of the request. Must never enter: touching its body.
"""

from __future__ import annotations

from gateway.formats.base import Ids, UpstreamRequest, WorkerView
from gateway.formats.headers import to_worker
from gateway.formats.relayed.request import MODEL_HEADER, Request


def upstream(path: str, request: Request, worker: WorkerView, ids: Ids) -> UpstreamRequest:
    """The client's request, under the dispatch id where the client had named one.

    Where it had not, the engine makes one of its own, or takes it from a member of the body.
    """
    lines = to_worker(request.headers, worker.authorization)
    headers = [line for line in lines if line[0] != MODEL_HEADER]
    if request.id is not None:
        headers = [line for line in headers if line[0] != b"x-request-id"]
        headers.append((b"x-request-id", ids.dispatch[0].encode()))
    return UpstreamRequest(b"POST", worker.prefix + path.encode(), headers, request.body)
