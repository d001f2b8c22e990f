"""The probes that identify a vLLM server, and find out whether it serves requests.

Owns: the probes and what their replies mean (vLLM 0.33.0). Must never enter: sending them, other dialects.

What decides is whether the generate route exists and answers in this dialect, so that an engine with several
dialects is found by each. The probe sends an empty object: the engine refuses that before it generates
anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from gateway.cards.values import CardValues
from gateway.formats.vllm.card import CAPABILITY_KEY, card_values, model_cards
from gateway.formats.vllm.load import METRICS
from gateway.formats.vllm.upstream import GENERATE_PATH
from gateway.formats.worker_contract import ProbeReply, ProbeRequest, WorkerInfo

CAPABILITY = "vllm_generate"

VERSION = ProbeRequest("GET", "/version")
MODELS = ProbeRequest("GET", "/v1/models")
GENERATE = ProbeRequest("POST", GENERATE_PATH, b"{}")
KV_EVENTS = ProbeRequest("GET", "/kv_event_sources")
#: Served in development mode only, like the routes that pause the engine.
WEIGHTS = ProbeRequest("GET", "/weight_info")
PAUSED = ProbeRequest("GET", "/is_paused")
SLEEPING = ProbeRequest("GET", "/is_sleeping")
CONFIG = ProbeRequest("GET", "/server_info?config_format=json")

PROBES = (VERSION, MODELS, GENERATE, KV_EVENTS, WEIGHTS, PAUSED, SLEEPING, CONFIG)
#: Engines of other kinds report some of their metrics to one reader only.
DETAILS = (METRICS,)
HEALTH = ProbeRequest("GET", "/health")

_REASONS = {
    401: "the API key is missing or wrong",
    403: "its scale-out endpoints are disabled; restart vllm serve with --enable-scale-out",
    404: f"it has no {GENERATE_PATH}; this release of vLLM is too old for it",
    501: "it serves a model that does not generate",
}


def identify(replies: Mapping[str, ProbeReply]) -> WorkerInfo | None:
    """Return what is known from the replies; None unless they are this engine's, or the route's in its
    dialect.
    """
    version = _version(replies.get(VERSION.target))
    models = _models(replies.get(MODELS.target))
    is_vllm = version is not None or any(model.get("owned_by") == "vllm" for model in models)
    reply = replies.get(GENERATE.target)
    usable = reply is not None and _serves(reply, is_vllm)
    if not usable and not _is_engine(reply, version, models):
        return None
    paused = _object(replies.get(PAUSED.target)).get("is_paused") is True
    sleeping = _object(replies.get(SLEEPING.target)).get("is_sleeping") is True
    bases = [model for model in models if not model.get("parent")]
    paths = [base.get("root") for base in bases]
    return WorkerInfo(
        engine="vllm" if is_vllm else "vllm-compatible",
        capability=CAPABILITY,
        usable=usable,
        reason="" if usable else _reason(reply),
        version=version,
        models=tuple(name for model in models if isinstance(name := model.get("id"), str)),
        stream_mode="delta",
        adapters=tuple(
            name for model in models if model.get("parent") and isinstance(name := model.get("id"), str)
        ),
        paused=paused or sleeping,
        reports_pauses=any(_object(replies.get(each.target)) for each in (PAUSED, SLEEPING)),
        model_path=next((path for path in paths if isinstance(path, str)), None),
        model_entries={name: model for model in models if isinstance(name := model.get("id"), str)},
        card=_card(replies, models, usable=usable),
        model_cards=model_cards(models),
    )


def _card(replies: Mapping[str, ProbeReply], models: list[dict[str, Any]], *, usable: bool) -> CardValues:
    config = _object(replies.get(CONFIG.target)).get("vllm_config")
    metrics, sources = replies.get(METRICS.target), replies.get(KV_EVENTS.target)
    values = card_values(
        models,
        config if isinstance(config, dict) else {},
        metrics.body if metrics is not None and metrics.status == 200 else b"",
        _object(sources) if sources is not None and sources.status == 200 else None,
        _object(replies.get(WEIGHTS.target)),
    )
    return replace(values, capabilities=(CAPABILITY_KEY,) if usable else ())


def _serves(reply: ProbeReply, is_vllm: bool) -> bool:
    """Return True if the route's reply to ``{}`` is that of one that generates."""
    answer = _object(reply)
    if reply.status in (400, 422):
        # If nothing else names the engine, the error itself must show that it knows the fields.
        return is_vllm or b"token_ids" in reply.body or b"sampling_params" in reply.body
    # Compatible servers may generate from an empty request.
    return reply.status == 200 and isinstance(answer.get("choices"), list)


def _is_engine(reply: ProbeReply | None, version: str | None, models: list[dict[str, Any]]) -> bool:
    """Return True if a server without a working route is this engine nevertheless."""
    if any(model.get("owned_by") == "vllm" for model in models):
        return True
    if reply is None:
        return False
    # Without a valid key the models are not listed, but the version is reported.
    return (reply.status == 403 and b"scale-out" in reply.body.lower()) or (
        reply.status == 401 and version is not None
    )


def _reason(reply: ProbeReply | None) -> str:
    if reply is None:
        return f"{GENERATE_PATH} did not answer"
    return _REASONS.get(reply.status, f"{GENERATE_PATH} answered {reply.status}")


def _version(reply: ProbeReply | None) -> str | None:
    found = _object(reply).get("version")
    return found if isinstance(found, str) else None


def _models(reply: ProbeReply | None) -> list[dict[str, Any]]:
    listed = _object(reply).get("data")
    return [model for model in listed if isinstance(model, dict)] if isinstance(listed, list) else []


def _object(reply: ProbeReply | None) -> dict[str, Any]:
    """Return the JSON object in a 200 reply, {} for anything else."""
    if reply is None or reply.status != 200:
        return {}
    try:
        found = msgspec.json.decode(reply.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
