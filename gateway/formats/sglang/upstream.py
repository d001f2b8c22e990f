"""What is written to a worker: the request itself, and the calls that stop it.

Owns: where the id stands in a body and how an abort is spelled. Must never enter: choosing ids or workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from gateway.errors import InvalidRequest
from gateway.formats.base import (
    AbortTarget,
    Headers,
    Ids,
    RelayedRequest,
    UpstreamRequest,
    WorkerView,
)
from gateway.formats.headers import of_own_call, to_worker
from gateway.formats.json_splice import insert_member, replace_member
from gateway.formats.json_steps import spliced
from gateway.formats.sglang.request import AbortCall, SglangRequest

_encode = msgspec.json.encode
#: Other routes that generate, and take the request's rid from the body.
_WITH_RID = frozenset({"/v1/chat/completions", "/v1/completions"})


_decode_abort = msgspec.json.Decoder(AbortCall).decode


def upstream(request: SglangRequest, worker: WorkerView, ids: Ids) -> UpstreamRequest:
    """The client's request for ``worker``; its bytes change only where the id must."""
    headers = to_worker(request.headers, worker.authorization)
    body, rest = _with_ids(request, ids.dispatch)
    return UpstreamRequest(b"POST", worker.prefix + b"/generate", headers, body, rest)


def abort(worker: WorkerView, request: SglangRequest, ids: Ids) -> Sequence[UpstreamRequest]:
    """One call per id the engine files the exchange under; none for n > 1, where only it knows them."""
    if request.fan > 1:
        return ()
    return _aborts(worker, request.headers, _filed(request, ids))


def abort_relayed(
    worker: WorkerView, path: str, request: RelayedRequest, ids: Ids
) -> Sequence[UpstreamRequest]:
    """The same for a route whose body may name the rid; of any other it makes one that nobody knows."""
    if path not in _WITH_RID or request.member != "rid" or not request.single:
        return ()
    return _aborts(worker, request.headers, ids.dispatch)


def _aborts(worker: WorkerView, given: Headers, rids: Iterable[str]) -> Sequence[UpstreamRequest]:
    headers = of_own_call(given, worker.authorization)
    target = worker.prefix + b"/abort_request"
    return [UpstreamRequest(b"POST", target, headers, _encode({"rid": rid})) for rid in rids]


def aborted_ids(body: bytes) -> AbortTarget:
    """What a client's own ``POST /abort_request`` names. Raises InvalidRequest."""
    try:
        asked = _decode_abort(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(
            'The body must be of the form {"rid": "..."} or {"abort_all": true}.', cause=error
        ) from error
    # An empty rid would match every request; the engine ignores it, and so it names nothing here.
    return AbortTarget(asked.abort_all, (asked.rid,) if asked.rid else ())


def _with_ids(request: SglangRequest, dispatch: tuple[str, ...]) -> tuple[bytes, Sequence[memoryview]]:
    rid = request.rid
    as_list = isinstance(rid, list) and len(rid) > 0
    if (tuple(rid) if isinstance(rid, list) else (rid,)) == dispatch:
        return request.body, ()
    value = _encode(dispatch if as_list else dispatch[0])
    if request.rid_spans is not None:
        return b"", spliced(request.body, request.rid_spans, "rid", value)
    if rid is msgspec.UNSET:
        return insert_member(request.body, "rid", value), ()
    return replace_member(request.body, "rid", value), ()


def _filed(request: SglangRequest, ids: Ids) -> Iterator[str]:
    if request.batch is None or isinstance(request.rid, list):
        yield from ids.dispatch
        return
    for index in range(request.batch):
        yield f"{ids.dispatch[0]}_{index}"
