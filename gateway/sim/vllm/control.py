"""vLLM's control routes: health, facts, aborts, and what its development mode adds.

Owns: their behaviour. Must never enter: generation.
"""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any

from gateway.sim.call import Call
from gateway.sim.engine import GET, GET_OR_POST, POST, Handler, Route, ok, plain, wall_clock
from gateway.sim.scheduler import Pause
from gateway.sim.vllm import errors, lax
from gateway.sim.vllm.control_input import field, optional_field, parameter, parameters, whole

if TYPE_CHECKING:
    from gateway.sim.vllm.engine import VllmEngine

VERSION = "0.33.0"
_METRICS_TYPE = b"text/plain; version=1.0.0; charset=utf-8"
#: Path -> what it says, and the field of its body that it cannot do without.
_WEIGHT_STEPS = {
    "/init_weight_transfer_engine": ("Weight transfer initialized", "init_info"),
    "/start_weight_update": ("Weight update started", None),
    "/start_draft_weight_update": ("Draft weight update started", None),
    "/update_weights": ("Weights updated", "update_info"),
    "/shutdown_weight_transfer_engine": ("Weight transfer shut down", None),
}
_MEMORY = ("weights", "kv_cache")
_PAUSE_MODE = lax.literal("abort", "wait", "keep")


class Control:
    """The handlers. ``routes`` lists where they are served."""

    def __init__(self, engine: VllmEngine) -> None:
        self._engine = engine
        self._scheduler = engine.scheduler
        self._config = engine.config
        #: Memory that sleeps.
        self._asleep: set[str] = set()

    def routes(self) -> dict[bytes, Route]:
        table = {
            "/health": Route(GET, self.health),
            "/ping": Route(GET_OR_POST, self.health),
            "/version": Route(GET, lambda call: ok(call, {"version": VERSION})),
            "/load": Route(GET, lambda call: ok(call, {"server_load": 0})),
            "/kv_event_sources": Route(GET, lambda call: ok(call, {})),
            "/metrics": Route(GET, self.metrics),
            "/v1/models": Route(GET, self.models),
            "/inference/v1/abort_requests": Route(POST, self.abort),
            "/is_scaling_elastic_ep": Route(POST, lambda call: ok(call, {"is_scaling_elastic_ep": False})),
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
                GET, lambda call: ok(call, {"is_paused": self._scheduler.paused is not None})
            ),
            "/sleep": Route(POST, self.sleep),
            "/wake_up": Route(POST, self.wake_up),
            "/is_sleeping": Route(GET, lambda call: ok(call, {"is_sleeping": self._sleeps})),
            "/release_kv_cache_memory": Route(POST, self.release_kv_cache),
            "/reset_prefix_cache": Route(POST, self.reset_prefix_cache),
            "/reset_mm_cache": Route(POST, lambda call: plain(call, 200)),
            "/reset_encoder_cache": Route(POST, lambda call: plain(call, 200)),
            "/finish_weight_update": Route(POST, self.finish_weight_update),
            "/update_weight_version": Route(POST, self.update_weight_version),
            "/weight_info": Route(GET, lambda call: ok(call, {"weight_version": self._scheduler.version})),
            "/get_world_size": Route(GET, lambda call: ok(call, {"world_size": 1})),
            "/server_info": Route(GET, self.server_info),
        }
        for path, (message, needed) in _WEIGHT_STEPS.items():
            table[path] = Route(POST, _says(message, needed))
        return table

    # Facts.

    def health(self, call: Call) -> None:
        # Starting, the real server does not listen yet; 503 is the nearest thing to that here.
        down = self._engine.dead or self._engine.starting
        plain(call, 503 if down else 200)

    def models(self, call: Call) -> None:
        cards = [self._card(self._config.model, None)]
        cards += [self._card(name, self._config.model) for name in self._engine.loras]
        ok(call, {"object": "list", "data": cards})

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
        return {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "vllm",
            "root": self._engine.loras[name] if parent else f"/models/{name}",
            "parent": parent,
            "max_model_len": None if parent else self._config.max_model_len,
            "permission": [permission],
        }

    def server_info(self, call: Call) -> None:
        name, length = self._config.model, self._config.max_model_len
        if parameter(call, "config_format", lax.literal("text", "json"), "text") == "text":
            ok(call, {"vllm_config": f"model='{name}', max_seq_len={length}"})
        else:
            ok(call, {"vllm_config": {"model_config": {"model": name, "max_model_len": length}}})

    def metrics(self, call: Call) -> None:
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
            # The real counter stays at zero for aborts.
            ended = 0 if reason == "abort" else scheduler.finished.get(reason, 0)
            named = f'engine="0",finished_reason="{reason}",model_name="{self._config.model}"'
            values.append(("request_success_total", "counter", named, ended))
        lines = []
        for name, kind, label, value in values:
            head = f"# TYPE vllm:{name} {kind}"
            if head not in lines:
                lines.append(head)
            lines.append(f"vllm:{name}{{{label}}} {float(value)}")
        call.send(200, ("\n".join(lines) + "\n").encode(), _METRICS_TYPE)

    # Aborts.

    def abort(self, call: Call) -> None:
        if not (self._config.enable_scale_out or self._config.skip_tokenizer):
            raise errors.scale_out_off()
        body = whole(call, lambda reason: f"JSON decode error: {reason}")
        if not isinstance(body, dict):
            raise errors.internal(f"'{type(body).__name__}' object has no attribute 'get'")
        if body.get("request_ids") is None:
            raise errors.refusal("Missing 'request_ids' in request body", "Bad Request", 400)
        # Whether it makes sense is found out later, when nobody is told any more.
        ids = _ids(body["request_ids"])
        hit = self._scheduler.abort(ids)
        self._engine.note_abort(ids, everything=False, hit=hit)
        plain(call, 200)

    def abort_and_wait(self, call: Call) -> None:
        """Development mode's own: no ids means all. Those that are named are counted whether they run or
        not."""
        body = whole(call, lambda reason: "Invalid JSON format")
        if not isinstance(body, dict):
            raise errors.refusal("Request body must be a JSON object", "Bad Request", 400)
        ids = _ids(body.get("request_ids") or ())
        hit = self._scheduler.abort(ids) if ids else self._scheduler.abort_all()
        self._engine.note_abort(ids, everything=not ids, hit=hit)
        ok(call, {"status": "aborted", "aborted": len(ids) if ids else hit})

    # Pausing and sleeping.

    def pause(self, call: Call) -> None:
        mode = parameter(call, "mode", _PAUSE_MODE, "abort")
        clear = parameter(call, "clear_cache", lax.boolean, True)
        if mode == "abort":
            self._scheduler.abort_all()
        if clear:
            self._scheduler.cache.clear()
        if mode == "keep":
            self._scheduler.pause(Pause.HOLD)
            ok(call, {"status": "paused"})
            return
        self._scheduler.pause(Pause.REJECT)
        self._engine.log.when(lambda: not self._scheduler.running, lambda: ok(call, {"status": "paused"}))

    def resume(self, call: Call) -> None:
        self._scheduler.resume()
        ok(call, {"status": "resumed"})

    def sleep(self, call: Call) -> None:
        level = parameter(call, "level", lax.between(0, 2), 1)
        parameter(call, "mode", _PAUSE_MODE, "abort")
        if level:
            self._asleep = set(_MEMORY)
        self._scheduler.abort_all()
        self._scheduler.pause(Pause.REJECT)
        ok(call, {"status": "sleeping", "level": level})

    def wake_up(self, call: Call) -> None:
        tags = parameters(call, "tags")
        self._asleep.difference_update(tags or _MEMORY)
        if not self._asleep:
            # It was paused for its sleep, and is resumed whoever else has paused it.
            self._scheduler.resume()
        ok(call, {"status": "sleeping" if self._asleep else "awake", "tags": tags or None})

    @property
    def _sleeps(self) -> bool:
        """A pause is one of the ways to sleep."""
        return bool(self._asleep) or self._scheduler.paused is not None

    def release_kv_cache(self, call: Call) -> None:
        if self._scheduler.paused is None or not self._scheduler.idle:
            reason = "release_kv_cache_memory() requires a completed pause first"
            raise errors.internal(f"Call to release_kv_cache_memory method failed: {reason}")
        self._scheduler.cache.clear()
        ok(call, {"status": "kv_cache_released"})

    def reset_prefix_cache(self, call: Call) -> None:
        busy = bool(self._scheduler.running)
        forced = parameter(call, "reset_running_requests", lax.boolean, False)
        parameter(call, "reset_external", lax.boolean, False)
        if not busy or forced:
            self._scheduler.cache.clear()
        ok(call, {"success": not busy or forced})

    # Weights and adapters.

    def finish_weight_update(self, call: Call) -> None:
        version = optional_field(call, "weight_version", lax.text)
        if version is not None:
            self._scheduler.set_version(version)
        ok(call, {"message": "Weight update finished"})

    def update_weight_version(self, call: Call) -> None:
        version = field(call, "new_version", lax.text)
        self._scheduler.set_version(version)
        ok(call, {"success": True, "new_version": version})

    def load_lora(self, call: Call) -> None:
        body = _body(call)
        name = str(body.get("lora_name", ""))
        if name in self._engine.loras and not body.get("load_inplace"):
            message = f"The lora adapter '{name}' has already been loaded."
            raise errors.refusal(message, "InvalidUserInput", 400)
        self._engine.loras[name] = str(body.get("lora_path", ""))
        plain(call, 200, f"Success: LoRA adapter '{name}' added successfully.")

    def unload_lora(self, call: Call) -> None:
        name = str(_body(call).get("lora_name", ""))
        if self._engine.loras.pop(name, None) is None:
            raise errors.refusal(f"The lora adapter '{name}' cannot be found.", "NotFoundError", 404)
        plain(call, 200, f"Success: LoRA adapter '{name}' removed successfully.")


def _says(message: str, needed: str | None) -> Handler:
    def handle(call: Call) -> None:
        if needed is not None:
            field(call, needed, lax.mapping)
        ok(call, {"message": message})

    return handle


def _body(call: Call) -> dict[str, Any]:
    """A control call's body; an empty one is an empty object. Raises Refusal."""
    if not call.arrival.body:
        return {}
    try:
        body = json.loads(call.arrival.body)
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise errors.refusal(f"JSON decode error: {error}", "Bad Request", 400) from error
    return body if isinstance(body, dict) else {}


def _ids(ids: Any) -> tuple[str, ...]:
    if isinstance(ids, list | tuple):
        return tuple(str(id) for id in ids)
    return (ids,) if isinstance(ids, str) else ()
