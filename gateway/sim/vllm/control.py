"""vLLM's control routes: health, information, aborts, and those of its development mode.

Owns: their behaviour, observed at vLLM 0.33.0. Must never enter: generation.
"""

from __future__ import annotations

import json
import uuid
from posixpath import join
from typing import TYPE_CHECKING, Any

from gateway.cards.structural_tag import KEY
from gateway.sim.engine import GET, GET_OR_POST, POST, Handler, Route, ok, plain, wall_clock
from gateway.sim.exchange import Exchange
from gateway.sim.scheduler import Pause
from gateway.sim.vllm import errors, field_types
from gateway.sim.vllm.control_input import field, json_body, optional_field, parameter, parameters

if TYPE_CHECKING:
    from gateway.sim.vllm.engine import VllmEngine

VERSION = "0.33.0"
_METRICS_TYPE = b"text/plain; version=1.0.0; charset=utf-8"
#: Path -> the message of its reply, and the required field of its body.
_WEIGHT_STEPS = {
    "/init_weight_transfer_engine": ("Weight transfer initialized", "init_info"),
    "/start_weight_update": ("Weight update started", None),
    "/start_draft_weight_update": ("Draft weight update started", None),
    "/update_weights": ("Weights updated", "update_info"),
    "/shutdown_weight_transfer_engine": ("Weight transfer shut down", None),
}
_MEMORY = ("weights", "kv_cache")
_PAUSE_MODE = field_types.literal("abort", "wait", "keep")


class Control:
    """The handlers of the control routes. ``routes`` lists where they are served."""

    def __init__(self, engine: VllmEngine) -> None:
        self._engine = engine
        self._scheduler = engine.scheduler
        self._config = engine.config
        #: The kinds of memory that are put to sleep.
        self._asleep: set[str] = set()

    def routes(self) -> dict[bytes, Route]:
        table = {
            "/health": Route(GET, self.health),
            "/ping": Route(GET_OR_POST, self.health),
            "/version": Route(GET, lambda exchange: ok(exchange, {"version": VERSION})),
            "/load": Route(GET, lambda exchange: ok(exchange, {"server_load": 0})),
            "/kv_event_sources": Route(GET, lambda exchange: ok(exchange, {})),
            "/metrics": Route(GET, self.metrics),
            "/v1/models": Route(GET, self.models),
            "/inference/v1/abort_requests": Route(POST, self.abort),
            "/is_scaling_elastic_ep": Route(
                POST, lambda exchange: ok(exchange, {"is_scaling_elastic_ep": False})
            ),
        }
        if self._config.skip_tokenizer:
            table["/abort_requests"] = Route(POST, self.abort)
        if self._config.enable_lora:
            table["/v1/load_lora_adapter"] = Route(POST, self.load_lora)
            table["/v1/unload_lora_adapter"] = Route(POST, self.unload_lora)
        if self._config.dev_mode:
            table |= self._dev_routes()
        return {path.encode(): route for path, route in table.items()}

    def _dev_routes(self) -> dict[str, Route]:
        table = {
            "/abort_requests": Route(POST, self.abort_and_wait),
            "/pause": Route(POST, self.pause),
            "/resume": Route(POST, self.resume),
            "/is_paused": Route(
                GET, lambda exchange: ok(exchange, {"is_paused": self._scheduler.paused is not None})
            ),
            "/sleep": Route(POST, self.sleep),
            "/wake_up": Route(POST, self.wake_up),
            "/is_sleeping": Route(GET, lambda exchange: ok(exchange, {"is_sleeping": self._sleeps})),
            "/release_kv_cache_memory": Route(POST, self.release_kv_cache),
            "/reset_prefix_cache": Route(POST, self.reset_prefix_cache),
            "/reset_mm_cache": Route(POST, lambda exchange: plain(exchange, 200)),
            "/reset_encoder_cache": Route(POST, lambda exchange: plain(exchange, 200)),
            "/finish_weight_update": Route(POST, self.finish_weight_update),
            "/update_weight_version": Route(POST, self.update_weight_version),
            "/weight_info": Route(
                GET, lambda exchange: ok(exchange, {"weight_version": self._scheduler.version})
            ),
            "/get_world_size": Route(GET, lambda exchange: ok(exchange, {"world_size": 1})),
            "/server_info": Route(GET, self.server_info),
        }
        for path, (message, needed) in _WEIGHT_STEPS.items():
            table[path] = Route(POST, _message_route(message, needed))
        return table

    # Information.

    def health(self, exchange: Exchange) -> None:
        # The real server does not listen yet while it starts; 503 is the closest equivalent here.
        down = self._engine.dead or self._engine.starting
        plain(exchange, 503 if down else 200)

    def models(self, exchange: Exchange) -> None:
        cards = [self._card(self._config.model, None)]
        cards += [self._card(name, self._config.model) for name in self._engine.loras]
        ok(exchange, {"object": "list", "data": cards})

    def _card(self, name: str, parent: str | None) -> dict[str, Any]:
        created = int(wall_clock())
        permission = {
            "id": f"modelperm-{uuid.uuid4().hex[:16]}",
            "object": "model_permission",
            "created": created,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": True,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        policy = self._config.dyn_structural_tag
        return {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": self._engine.loras[name] if parent else join("/models", name),
            "parent": parent,
            "max_model_len": None if parent else self._config.max_model_len,
            "permission": [permission],
            # A real server has no such member; without it the policy is off by default.
            **({KEY: policy.member()} if policy.enabled and not parent else {}),
        }

    def server_info(self, exchange: Exchange) -> None:
        name, length = self._config.model, self._config.max_model_len
        if parameter(exchange, "config_format", field_types.literal("text", "json"), "text") == "text":
            ok(exchange, {"vllm_config": f"model='{name}', max_seq_len={length}"})
        else:
            grammars = {"reasoning_parser": self._config.reasoning_parser or "", "enable_in_reasoning": False}
            config = {
                "model_config": {"model": name, "max_model_len": length},
                "structured_outputs_config": grammars,
            }
            ok(exchange, {"vllm_config": config})

    def metrics(self, exchange: Exchange) -> None:
        scheduler, cache = self._scheduler, self._scheduler.cache
        labels = f'engine="0",model_name="{self._config.model}"'
        values: list[tuple[str, str, str, float]] = [
            ("num_requests_running", "gauge", labels, len(scheduler.running)),
            ("num_requests_waiting", "gauge", labels, scheduler.queued),
            ("kv_cache_usage_perc", "gauge", labels, min(1.0, scheduler.used_tokens / (1 << 20))),
            ("prefix_cache_queries_total", "counter", labels, cache.queries),
            ("prefix_cache_hits_total", "counter", labels, cache.hits),
            ("prompt_tokens_total", "counter", labels, scheduler.prompt_tokens),
            ("generation_tokens_total", "counter", labels, scheduler.generated_tokens),
        ]
        for reason in ("stop", "length", "abort", "error", "repetition"):
            # The real counter does not count aborts.
            ended = 0 if reason == "abort" else scheduler.finished.get(reason, 0)
            named = f'engine="0",finished_reason="{reason}",model_name="{self._config.model}"'
            values.append(("request_success_total", "counter", named, ended))
        lines = []
        for name, kind, label, value in values:
            head = f"# TYPE vllm:{name} {kind}"
            if head not in lines:
                lines.append(head)
            lines.append(f"vllm:{name}{{{label}}} {float(value)}")
        exchange.send(200, ("\n".join(lines) + "\n").encode(), _METRICS_TYPE)

    # Aborts.

    def abort(self, exchange: Exchange) -> None:
        if not (self._config.enable_scale_out or self._config.skip_tokenizer):
            raise errors.scale_out_off()
        body = json_body(exchange, lambda reason: f"JSON decode error: {reason}")
        if not isinstance(body, dict):
            raise errors.internal(f"'{type(body).__name__}' object has no attribute 'get'")
        if body.get("request_ids") is None:
            raise errors.refusal("Missing 'request_ids' in request body", "Bad Request", 400)
        # Invalid ids are found later, when no error can be sent any more.
        ids = _ids(body["request_ids"])
        hit = self._scheduler.abort(ids)
        self._engine.note_abort(ids, everything=False, hit=hit)
        plain(exchange, 200)

    def abort_and_wait(self, exchange: Exchange) -> None:
        """Abort as in development mode: without ids all requests; named ids are counted whether they run or
        not.
        """
        body = json_body(exchange, lambda reason: "Invalid JSON format")
        if not isinstance(body, dict):
            raise errors.refusal("Request body must be a JSON object", "Bad Request", 400)
        ids = _ids(body.get("request_ids") or ())
        hit = self._scheduler.abort(ids) if ids else self._scheduler.abort_all()
        self._engine.note_abort(ids, everything=not ids, hit=hit)
        ok(exchange, {"status": "aborted", "aborted": len(ids) if ids else hit})

    # Pausing and sleeping.

    def pause(self, exchange: Exchange) -> None:
        mode = parameter(exchange, "mode", _PAUSE_MODE, "abort")
        clear = parameter(exchange, "clear_cache", field_types.boolean, True)
        if mode == "abort":
            self._scheduler.abort_all()
        if clear:
            self._scheduler.cache.clear()
        if mode == "keep":
            self._scheduler.pause(Pause.HOLD)
            ok(exchange, {"status": "paused"})
            return
        self._scheduler.pause(Pause.REJECT)
        self._engine.log.when(lambda: not self._scheduler.running, lambda: ok(exchange, {"status": "paused"}))

    def resume(self, exchange: Exchange) -> None:
        self._scheduler.resume()
        ok(exchange, {"status": "resumed"})

    def sleep(self, exchange: Exchange) -> None:
        level = parameter(exchange, "level", field_types.between(0, 2), 1)
        parameter(exchange, "mode", _PAUSE_MODE, "abort")
        if level:
            self._asleep = set(_MEMORY)
        self._scheduler.abort_all()
        self._scheduler.pause(Pause.REJECT)
        ok(exchange, {"status": "sleeping", "level": level})

    def wake_up(self, exchange: Exchange) -> None:
        tags = parameters(exchange, "tags")
        self._asleep.difference_update(tags or _MEMORY)
        if not self._asleep:
            # The end of a sleep ends a pause as well, whoever paused the engine.
            self._scheduler.resume()
        ok(exchange, {"status": "sleeping" if self._asleep else "awake", "tags": tags or None})

    @property
    def _sleeps(self) -> bool:
        """True while the engine sleeps or is paused, which it reports as sleeping too."""
        return bool(self._asleep) or self._scheduler.paused is not None

    def release_kv_cache(self, exchange: Exchange) -> None:
        if self._scheduler.paused is None or not self._scheduler.idle:
            reason = "release_kv_cache_memory() requires a completed pause first"
            raise errors.internal(f"Call to release_kv_cache_memory method failed: {reason}")
        self._scheduler.cache.clear()
        ok(exchange, {"status": "kv_cache_released"})

    def reset_prefix_cache(self, exchange: Exchange) -> None:
        busy = bool(self._scheduler.running)
        forced = parameter(exchange, "reset_running_requests", field_types.boolean, False)
        parameter(exchange, "reset_external", field_types.boolean, False)
        if not busy or forced:
            self._scheduler.cache.clear()
        ok(exchange, {"success": not busy or forced})

    # Weights and adapters.

    def finish_weight_update(self, exchange: Exchange) -> None:
        version = optional_field(exchange, "weight_version", field_types.text)
        if version is not None:
            self._scheduler.set_version(version)
        ok(exchange, {"message": "Weight update finished"})

    def update_weight_version(self, exchange: Exchange) -> None:
        version = field(exchange, "new_version", field_types.text)
        self._scheduler.set_version(version)
        ok(exchange, {"success": True, "new_version": version})

    def load_lora(self, exchange: Exchange) -> None:
        body = _body(exchange)
        name = str(body.get("lora_name", ""))
        if name in self._engine.loras and not body.get("load_inplace"):
            message = f"The lora adapter '{name}' has already been loaded."
            raise errors.refusal(message, "InvalidUserInput", 400)
        self._engine.loras[name] = str(body.get("lora_path", ""))
        plain(exchange, 200, f"Success: LoRA adapter '{name}' added successfully.")

    def unload_lora(self, exchange: Exchange) -> None:
        name = str(_body(exchange).get("lora_name", ""))
        if self._engine.loras.pop(name, None) is None:
            raise errors.refusal(f"The lora adapter '{name}' cannot be found.", "NotFoundError", 404)
        plain(exchange, 200, f"Success: LoRA adapter '{name}' removed successfully.")


def _message_route(message: str, needed: str | None) -> Handler:
    def handle(exchange: Exchange) -> None:
        if needed is not None:
            field(exchange, needed, field_types.mapping)
        ok(exchange, {"message": message})

    return handle


def _body(exchange: Exchange) -> dict[str, Any]:
    """Return a control call's body; an empty body is an empty object. Raises Refusal."""
    if not exchange.arrival.body:
        return {}
    try:
        body = json.loads(exchange.arrival.body)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.refusal(f"JSON decode error: {error}", "Bad Request", 400) from error
    return body if isinstance(body, dict) else {}


def _ids(ids: Any) -> tuple[str, ...]:
    if isinstance(ids, list | tuple):
        return tuple(str(id) for id in ids)
    return (ids,) if isinstance(ids, str) else ()
