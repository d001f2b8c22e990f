"""The probes that identify an SGLang server.

Owns: which probes, and what their replies mean (SGLang 0.5.22 and older). Must never enter: sending them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from gateway.formats.sglang.card import card_values, text_of
from gateway.formats.sglang.stream_mode import CUMULATIVE, INCREMENTAL
from gateway.formats.worker_contract import ProbeReply, ProbeRequest, WorkerInfo

ENGINE = "sglang"
#: Also the key of the endpoint on a card.
CAPABILITY = "sglang_generate"

_INFO = "/server_info"
_INFO_BEFORE = "/get_server_info"
_MODEL = "/model_info"
_MODELS = "/v1/models"

PROBES = tuple(ProbeRequest("GET", target) for target in (_INFO, _INFO_BEFORE, _MODEL, _MODELS))
#: Answered at once, with 200 only while the server is up, not paused and not shutting down. Older releases
#: answer 404, which still shows that they are alive; ``/health`` would cost them a generated token.
HEALTH = ProbeRequest("GET", "/ready")

#: Durations of a start that tell it from every other one.
LEAST_DURATIONS = 2

# Settings that no other engine reports together with a version.
_TELLING_SETTINGS = frozenset(
    {"disaggregation_mode", "frontend", "incremental_streaming_output", "internal_states", "tp_size"}
)

_RUST_FRONTEND = "Rust frontend: no n > 1, and requests stop only when their connection closes"


def identify(replies: Mapping[str, ProbeReply]) -> WorkerInfo | None:
    """Return what is known from the replies, any of which may be missing; None for a server of another
    kind.
    """
    info = _document(replies, _INFO) or _document(replies, _INFO_BEFORE)
    model = _document(replies, _MODEL)
    if not _is_sglang(info, model):
        return _locked(replies)
    cards = _cards(_document(replies, _MODELS))
    reason = _unusable(info, model)
    values = card_values(info, model, cards)
    return WorkerInfo(
        engine=ENGINE,
        capability=CAPABILITY,
        usable=not reason,
        reason=reason or (_RUST_FRONTEND if info.get("frontend") == "rust" else ""),
        version=text_of(info.get("version")),
        models=_models(cards, info, model),
        stream_mode=_stream_mode(info),
        adapters=tuple(name for card in cards if card.get("parent") and (name := text_of(card.get("id")))),
        model_entries=_entries_by_name(cards, info),
        launch=_launch(info.get("startup_time")),
        card=replace(values, capabilities=() if reason else (CAPABILITY,)),
        model_path=text_of(model.get("model_path")) or text_of(info.get("model_path")),
    )


def _document(replies: Mapping[str, ProbeReply], target: str) -> dict[str, Any]:
    """Return the JSON object in a 200 reply to ``target``, {} for anything else."""
    reply = replies.get(target)
    if reply is None or reply.status != 200:
        return {}
    try:
        document = msgspec.json.decode(reply.body)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _is_sglang(info: Mapping[str, Any], model: Mapping[str, Any]) -> bool:
    by_info = "version" in info and not _TELLING_SETTINGS.isdisjoint(info)
    return by_info or ("model_path" in model and "is_generation" in model)


def _locked(replies: Mapping[str, ProbeReply]) -> WorkerInfo | None:
    if not any(target in replies and replies[target].status == 401 for target in (_INFO, _INFO_BEFORE)):
        return None
    reason = "it answers 401: it needs an API key, or another one (--worker-api-key)"
    return WorkerInfo(engine=ENGINE, capability=CAPABILITY, usable=False, reason=reason)


def _unusable(info: Mapping[str, Any], model: Mapping[str, Any]) -> str:
    if info.get("is_embedding") is True or model.get("is_generation") is False:
        return "it serves an embedding model, which cannot generate"
    mode = info.get("disaggregation_mode", model.get("disaggregation_mode"))
    if mode in ("prefill", "decode"):
        return f"it is the {mode} half of a disaggregated pair and serves no request alone"
    return ""


def _cards(models: Mapping[str, Any]) -> list[dict[str, Any]]:
    data = models.get("data")
    return [card for card in data if isinstance(card, dict)] if isinstance(data, list) else []


def _models(
    cards: list[dict[str, Any]], info: Mapping[str, Any], model: Mapping[str, Any]
) -> tuple[str, ...]:
    """Return the model's name, then those of its adapters.

    The name is the one the server was started with, if it reports that. After an update of weights from disk
    it reports their path as its name; engines that are updated one after another would seem to serve several
    models meanwhile.
    """
    started_as = text_of(info.get("served_model_name"))
    ids = tuple(
        name
        for card in cards
        if (name := text_of(card.get("id"))) is not None and (started_as is None or card.get("parent"))
    )
    if started_as is not None:
        return (started_as, *ids)
    name = text_of(model.get("served_model_name"))
    return ids or (() if name is None else (name,))


def _entries_by_name(cards: list[dict[str, Any]], info: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the cards by the names of ``_models``."""
    started_as = text_of(info.get("served_model_name"))
    return {
        started_as if started_as is not None and not card.get("parent") else name: card
        for card in cards
        if (name := text_of(card.get("id"))) is not None
    }


def _stream_mode(info: Mapping[str, Any]) -> str | None:
    incremental = info.get("incremental_streaming_output")
    if not isinstance(incremental, bool):
        return None
    return INCREMENTAL if incremental else CUMULATIVE


def _launch(durations: Any) -> str | None:
    """Return how long the parts of the start took, in nanoseconds: no two launches agree in several."""
    if not isinstance(durations, dict):
        return None
    measured = [
        f"{name}={each!r}" for name, each in durations.items() if isinstance(each, float) and each % 1
    ]
    return " ".join(sorted(measured)) if len(measured) >= LEAST_DURATIONS else None
