"""SGLang's control routes: health, facts, aborts, pausing, weights, adapters, memory.

Owns: their behaviour. Must never enter: generation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.sim.engine import GET, GET_OR_POST, POST, Refusal, Route, encode, ok, plain, query
from gateway.sim.http1 import Call
from gateway.sim.scheduler import Pause
from gateway.sim.sglang import errors, facts, schema

if TYPE_CHECKING:
    from gateway.sim.sglang.engine import SglangEngine

_HEALTH_DELAY = 1.0
_MODES = ("abort", "retract", "in_place")
_WEIGHTS = (
    "/update_weights_from_tensor",
    "/update_weights_from_distributed",
    "/update_weights_from_ipc",
    "/init_weights_update_group",
    "/destroy_weights_update_group",
    "/begin_weight_update",
    "/end_weight_update",
)
_LORA_FIELDS = {"rid": None, "http_worker_ipc": None}


class Control:
    """The handlers. ``routes`` lists where they are served and who may call them."""

    def __init__(self, engine: SglangEngine) -> None:
        self._engine = engine
        self._scheduler = engine.scheduler
        self._config = engine.config

    def routes(self) -> dict[bytes, Route]:
        api, admin = "api", "admin"
        table = {
            "/": Route(GET, lambda call: ok(call, "SGLang is running"), api),
            "/health": Route(GET, self.health, api),
            "/health_generate": Route(GET, self.health, api),
            "/ready": Route(GET, self.ready, api),
            "/ping": Route(GET, lambda call: plain(call, 200), api),
            "/model_info": Route(GET, self.model_info, api),
            "/get_model_info": Route(GET, self.model_info, api),
            "/server_info": Route(GET, self.server_info, api),
            "/get_server_info": Route(GET, self.server_info, api),
            "/v1/models": Route(GET, self.models, api),
            f"/v1/models/{self._config.model}": Route(GET, self.model, api),
            "/v1/loads": Route(GET, self.loads, api),
            "/get_weight_version": Route(GET, self.weight_version, api),
            "/weight_version": Route(GET, self.weight_version, api),
            "/abort_request": Route(POST, self.abort, admin),
            "/flush_cache": Route(GET_OR_POST, self.flush_cache, admin),
            "/pause_generation": Route(POST, self.pause, admin),
            "/continue_generation": Route(POST, self.resume, admin),
            "/update_weights_from_disk": Route(POST, self.update_weights_from_disk, admin),
            "/update_weight_version": Route(POST, self.update_weight_version, admin),
            "/load_lora_adapter": Route(POST, self.load_lora, admin),
            "/unload_lora_adapter": Route(POST, self.unload_lora, admin),
            "/release_memory_occupation": Route(GET_OR_POST, lambda call: ok(call, None), admin),
            "/resume_memory_occupation": Route(GET_OR_POST, lambda call: ok(call, None), admin),
            **{path: Route(POST, self.update_weights, admin) for path in _WEIGHTS},
        }
        if self._config.enable_metrics:
            table["/metrics"] = Route(GET, self.metrics)
        return {path.encode(): route for path, route in table.items()}

    # Health.

    def health(self, call: Call) -> None:
        engine = self._engine
        if engine.starting or engine.terminating:
            plain(call, 503)
        elif self._config.fast_health:
            plain(call, 200)
        else:
            # The engine generates a token and looks once a second whether it came; a paused one makes none.
            status = 503 if self._scheduler.paused and not self._scheduler.running else 200
            engine.loop.call_later(_HEALTH_DELAY, plain, call, status)

    def ready(self, call: Call) -> None:
        engine = self._engine
        up = not (engine.starting or engine.terminating or self._scheduler.paused)
        plain(call, 200 if up else 503)

    # Facts.

    def model_info(self, call: Call) -> None:
        ok(call, facts.model_info(self._config, self._scheduler))

    def server_info(self, call: Call) -> None:
        ok(call, facts.server_info(self._config, self._scheduler))

    def models(self, call: Call) -> None:
        cards = [facts.model_card(self._config)]
        cards += [facts.model_card(self._config, lora=name) for name in self._engine.loras]
        ok(call, {"object": "list", "data": cards})

    def model(self, call: Call) -> None:
        ok(call, facts.model_card(self._config))

    def loads(self, call: Call) -> None:
        asked = query(call)
        try:
            body = facts.loads(
                self._config, self._scheduler, asked.get("include", "all"), asked.get("dp_rank")
            )
        except ValueError as error:
            raise errors.internal() from error
        ok(call, body)

    def weight_version(self, call: Call) -> None:
        ok(call, {"weight_version": self._scheduler.version})

    def metrics(self, call: Call) -> None:
        call.send(200, facts.metrics(self._config, self._scheduler), facts.METRICS_TYPE)

    # Requests.

    def abort(self, call: Call) -> None:
        body = schema.read(call, "AbortReq", "abort_request")
        engine = self._engine
        everything = bool(body.get("abort_all", False))
        rid = body.get("rid")
        if everything:
            hit = self._scheduler.abort_all()
        else:
            hit = engine.abort(rid) if isinstance(rid, str) and rid else 0
        engine.note_abort((rid,) if isinstance(rid, str) else (), everything=everything, hit=hit)
        plain(call, 200)

    def flush_cache(self, call: Call) -> None:
        wait = _timeout(call)
        if not self._scheduler.idle:
            if wait <= 0:
                raise Refusal(400, b"Flush cache failed.\n", b"text/plain; charset=utf-8")
            until = self._engine.loop.time() + wait
            self._engine.scheduler.pacer.after(0.01, lambda: self._flush_later(call, until))
            return
        self._flush(call)

    def _flush_later(self, call: Call, until: float) -> None:
        if self._scheduler.idle:
            self._flush(call)
        elif self._engine.loop.time() < until:
            self._engine.scheduler.pacer.after(0.01, lambda: self._flush_later(call, until))
        else:
            plain(call, 400, "Flush cache failed.\n")

    def _flush(self, call: Call) -> None:
        self._scheduler.cache.clear()
        plain(call, 200, "Cache flushed.\n")

    def pause(self, call: Call) -> None:
        mode = _body(call, "PauseGenerationReqInput").get("mode", "abort")
        if mode not in _MODES:
            expected = "'abort', 'retract' or 'in_place'"
            problem = (
                f"{{'type': 'literal_error', 'loc': ('body', 'mode'), 'msg': \"Input should be {expected}\", "
                f"'input': {mode!r}}}"
            )
            raise errors.malformed(problem, ("pause_generation", call))
        if mode == "abort":
            self._scheduler.abort_all()
        self._scheduler.pause(Pause.HOLD, retract=mode == "retract")
        ok(call, {"message": "Generation paused successfully.", "status": "ok"})

    def resume(self, call: Call) -> None:
        self._scheduler.resume()
        ok(call, {"message": "Generation continued successfully.", "status": "ok"})

    # Weights.

    def update_weights_from_disk(self, call: Call) -> None:
        body = _body(call, "UpdateWeightFromDiskReqInput")
        if not isinstance(body.get("model_path"), str):
            raise errors.malformed(
                "{'type': 'missing', 'loc': ('body', 'model_path'), 'msg': 'Field required'}",
                ("update_weights_from_disk", call),
            )
        self._take_weights(body)
        paused = self._scheduler.queued if self._scheduler.paused else 0
        ok(
            call,
            {"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": paused},
        )

    def update_weights(self, call: Call) -> None:
        self._take_weights(_body(call, "UpdateWeightsReqInput"))
        ok(call, {"success": True, "message": "Success"})

    def update_weight_version(self, call: Call) -> None:
        body = _body(call, "UpdateWeightVersionReqInput")
        version = str(body.get("new_version", ""))
        # The default stops everything; callers that do not expect it lose their rollouts.
        if body.get("abort_all_requests", True):
            self._scheduler.abort_all()
        self._scheduler.set_version(version)
        message = f"Weight version updated to {version}"
        ok(call, {"success": True, "message": message, "new_version": version})

    def _take_weights(self, body: dict[str, Any]) -> None:
        if body.get("abort_all_requests", False):
            self._scheduler.abort_all()
        if body.get("flush_cache", True):
            self._scheduler.cache.clear()
        if isinstance(version := body.get("weight_version"), str):
            self._scheduler.set_version(version)

    # Adapters.

    def load_lora(self, call: Call) -> None:
        body = _body(call, "LoadLoRAAdapterReqInput")
        name = str(body.get("lora_name", ""))
        if not self._config.enable_lora:
            self._lora_reply(call, "LoRA is not enabled. Please set `--enable-lora` to enable LoRA.")
        elif name in self._engine.loras:
            self._lora_reply(call, f"LoRA adapter {name} is already loaded.")
        else:
            self._engine.loras[name] = str(body.get("lora_path", ""))
            self._lora_reply(call, None)

    def unload_lora(self, call: Call) -> None:
        name = str(_body(call, "UnloadLoRAAdapterReqInput").get("lora_name", ""))
        if self._engine.loras.pop(name, None) is None:
            self._lora_reply(call, f"LoRA adapter {name} is not loaded.")
        else:
            self._lora_reply(call, None)

    def _lora_reply(self, call: Call, error: str | None) -> None:
        body = {
            **_LORA_FIELDS,
            "success": error is None,
            "error_message": error or "",
            "loaded_adapters": dict(self._engine.loras),
        }
        call.send(200 if error is None else 400, encode(body))


def _timeout(call: Call) -> float:
    try:
        return float(query(call).get("timeout", 0))
    except ValueError as error:
        problem = (
            "{'type': 'float_parsing', 'loc': ('query', 'timeout'), 'msg': 'Input should be a valid number'}"
        )
        raise errors.malformed(problem, ("flush_cache", call)) from error


def _body(call: Call, model: str) -> dict[str, Any]:
    """A control call's body; an empty one is an empty object."""
    return schema.read(call, model, "control") if call.arrival.body else {}
