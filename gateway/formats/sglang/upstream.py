"""The requests sent to an SGLang server: generate, and aborts.

Owns: the place of the id and of the rank in a body, and how an abort is spelled (SGLang 0.5.22). Must never
enter: choosing ids or workers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec

from gateway.errors import InvalidRequest
from gateway.formats.contract import Headers, Ids, UpstreamRequest, WorkerView
from gateway.formats.headers import of_own_call, to_worker
from gateway.formats.json.splice import insert_member, replace_member
from gateway.formats.json.steps import NewValue, spliced
from gateway.formats.optional import AbortTarget, EngineId, RelayedRequest
from gateway.formats.sglang.request import ABSENT, AbortCall, SglangRequest

_encode = msgspec.json.encode
#: The member by which the engine reads a data-parallel rank; on this route it reads no header.
RANK = "routed_dp_rank"
#: Other generating routes that take the request's rid from the body.
_WITH_RID = frozenset({"/v1/chat/completions", "/v1/completions"})
#: The one of them that accepts several prompts.
_BATCHED = "/v1/completions"
#: The engine's name for each prompt of a batch with one rid.
_NUMBERED = re.compile(r"(.+)_(0|[1-9][0-9]{0,8})", re.DOTALL)


_decode_abort = msgspec.json.Decoder(AbortCall).decode


def upstream(request: SglangRequest, worker: WorkerView, ids: Ids) -> UpstreamRequest:
    """Return the client's request for ``worker``; its bytes change only where the id or the rank must."""
    headers = to_worker(request.headers, worker.authorization)
    id_value = _id_value(request, ids.dispatch)
    target = worker.prefix + b"/generate"
    if id_value is None and request.rank is None:
        return UpstreamRequest(b"POST", target, headers, request.body)
    if request.rid_spans is None:
        return UpstreamRequest(b"POST", target, headers, _changed(request, id_value))
    return UpstreamRequest(b"POST", target, headers, b"", _changed_in_place(request, id_value))


def abort(worker: WorkerView, request: SglangRequest, ids: Ids) -> Sequence[UpstreamRequest]:
    """Return one abort for each id under which the engine knows the exchange; none for n > 1, where the
    engine creates the ids.
    """
    if request.samples_per_prompt > 1:
        return ()
    return _aborts(worker, request.headers, _filed(request, ids))


def abort_relayed(
    worker: WorkerView, path: str, request: RelayedRequest, ids: Ids
) -> Sequence[UpstreamRequest]:
    """Return the aborts of a request to a relayed route; none for a route whose engine ids are not known."""
    if path not in _WITH_RID or request.member != "rid" or request.several_samples or request.beam_search:
        return ()
    rids: Sequence[str] = ()
    if ids.parts:
        if path == _BATCHED and not request.one_prompt:
            rids = _numbered(ids, ids.parts)
    elif request.one_prompt:
        rids = ids.dispatch
    return _aborts(worker, request.headers, rids)


def _aborts(worker: WorkerView, client_headers: Headers, rids: Iterable[str]) -> Sequence[UpstreamRequest]:
    headers = of_own_call(client_headers, worker.authorization)
    target = worker.prefix + b"/abort_request"
    return [UpstreamRequest(b"POST", target, headers, _encode({"rid": rid})) for rid in rids]


def aborted_ids(body: bytes) -> AbortTarget:
    """Return what a client's ``POST /abort_request`` names. Raises InvalidRequest."""
    try:
        call = _decode_abort(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(
            'The body must be of the form {"rid": "..."} or {"abort_all": true}.', cause=error
        ) from error
    # The engine ignores an empty rid, as it would match every request.
    if not call.rid:
        return AbortTarget(call.abort_all)
    numbered = _NUMBERED.fullmatch(call.rid)
    if numbered is None:
        return AbortTarget(call.abort_all, (call.rid,))
    id, part = numbered[1], int(numbered[2])
    return AbortTarget(call.abort_all, (call.rid,), (EngineId(id, None, part), EngineId(id, _BATCHED, part)))


def _id_value(request: SglangRequest, dispatch: tuple[str, ...]) -> bytes | None:
    """Return the new value of ``rid``, None if the body has it already."""
    rid = request.rid
    if isinstance(rid, list):
        return None if tuple(rid) == dispatch else _encode(dispatch if rid else dispatch[0])
    return None if rid == dispatch[0] else _encode(dispatch[0])


def _changed(request: SglangRequest, id_value: bytes | None) -> bytes:
    """Return the body with the new id and with the rank that the header names, whichever is set."""
    body = request.body
    if id_value is not None:
        change = insert_member if request.rid is msgspec.UNSET else replace_member
        body = change(body, "rid", id_value)
    if request.rank is not None:
        change = insert_member if request.fields.routed_dp_rank is ABSENT else replace_member
        body = change(body, RANK, b"%d" % request.rank)
    return body


def _changed_in_place(request: SglangRequest, id_value: bytes | None) -> Sequence[memoryview]:
    """Return the pieces of a large body with the same changes: its values are replaced where they were found,
    so that nothing is copied.
    """
    spans = request.rid_spans
    changes = [] if id_value is None or spans is None else [NewValue("rid", id_value, spans)]
    if request.rank is not None:
        changes.append(NewValue(RANK, b"%d" % request.rank, request.rank_spans))
    return spliced(request.body, changes)


def _filed(request: SglangRequest, ids: Ids) -> Sequence[str]:
    if request.batch is None or isinstance(request.rid, list):
        return () if ids.parts else ids.dispatch
    numbers = range(request.batch)
    return _numbered(ids, [part for part in ids.parts if part in numbers] if ids.parts else numbers)


def _numbered(ids: Ids, parts: Sequence[int]) -> Sequence[str]:
    return [f"{ids.dispatch[0]}_{part}" for part in parts]
