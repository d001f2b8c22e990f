"""SGLang's control routes: health, information, aborts, pausing, weights, adapters, memory.

Owns: their behaviour, observed at SGLang 0.5.22. Must never enter: generation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gateway.sim.engine import GET, GET_OR_POST, POST, Handler, Refusal, Route, encode, ok, plain, query
from gateway.sim.exchange import Exchange
from gateway.sim.scheduler import Pause
from gateway.sim.sglang import control_bodies, errors, information

if TYPE_CHECKING:
    from gateway.sim.sglang.engine import SglangEngine

_HEALTH_DELAY = 1.0
_WEIGHTS = {
    "/update_weights_from_tensor": "UpdateWeightsFromTensorReqInput",
    "/update_weights_from_distributed": "UpdateWeightsFromDistributedReqInput",
    "/update_weights_from_ipc": "UpdateWeightsFromIPCReqInput",
    "/begin_weight_update": "BeginWeightUpdateReqInput",
    "/end_weight_update": "EndWeightUpdateReqInput",
}
_FLUSHED = (
    b"Cache flushed.\nPlease check backend logs for more details. "
    b"(When there are running or waiting requests, the operation will not be performed.)\n"
)
_NOT_FLUSHED = b"Flush cache failed.\n"
_NO_LORA = "LoRA is not enabled. Please set `--enable-lora` to enable LoRA."
_GROUP = "weight_update_group"
_MEMORY = ("kv_cache", "weights", "cuda_graph")
_LORA_FIELDS = {"rid": None, "http_worker_ipc": None}


class Control:
    """The handlers of the control routes. ``routes`` lists where they are served and which key they need."""

    def __init__(self, engine: SglangEngine) -> None:
        self._engine = engine
        self._scheduler = engine.scheduler
        self._config = engine.config
        self._groups: set[str] = set()
        self._released: set[str] = set()

    def routes(self) -> dict[bytes, Route]:
        api, admin = "api", "admin"
        table = {
            "/": Route(GET, lambda exchange: ok(exchange, "SGLang is running"), api),
            "/health": Route(GET, self.health, api),
            "/health_generate": Route(GET, self.health, api),
            "/ready": Route(GET, self.ready, api),
            "/ping": Route(GET, lambda exchange: plain(exchange, 200), api),
            "/model_info": Route(GET, self.model_info, api),
            "/get_model_info": Route(GET, self.model_info, api),
            "/server_info": Route(GET, self.server_info, api),
            "/get_server_info": Route(GET, self.server_info, api),
            "/v1/models": Route(GET, self.models, api),
            f"/v1/models/{self._config.model}": Route(GET, self.model, api),
            "/v1/loads": Route(GET, self.loads, api),
            "/abort_request": Route(POST, self.abort, admin),
            "/flush_cache": Route(GET_OR_POST, self.flush_cache, admin),
            "/pause_generation": Route(POST, self.pause, admin),
            "/continue_generation": Route(POST, self.resume, admin),
            "/update_weights_from_disk": Route(POST, self.update_weights_from_disk, admin),
            "/update_weight_version": Route(POST, self.update_weight_version, admin),
            "/load_lora_adapter": Route(POST, self.load_lora, admin),
            "/unload_lora_adapter": Route(POST, self.unload_lora, admin),
            "/release_memory_occupation": Route(GET_OR_POST, self.release_memory, admin),
            "/resume_memory_occupation": Route(GET_OR_POST, self.take_memory_back, admin),
            "/init_weights_update_group": Route(POST, self.join_group, admin),
            "/destroy_weights_update_group": Route(POST, self.leave_group, admin),
            **{path: Route(POST, self._weights_route(struct), admin) for path, struct in _WEIGHTS.items()},
        }
        if self._config.enable_metrics:
            table["/metrics"] = Route(GET, self.metrics)
        return {path.encode(): route for path, route in table.items()}

    # Health.

    def health(self, exchange: Exchange) -> None:
        engine = self._engine
        if engine.starting or engine.terminating:
            plain(exchange, 503)
        elif self._config.fast_health:
            plain(exchange, 200)
        else:
            # The engine generates a token and checks once a second whether it came; a paused engine generates
            # none.
            status = 503 if self._scheduler.paused and not self._scheduler.running else 200
            engine.loop.call_later(_HEALTH_DELAY, plain, exchange, status)

    def ready(self, exchange: Exchange) -> None:
        engine = self._engine
        up = not (engine.starting or engine.terminating or self._scheduler.paused)
        plain(exchange, 200 if up else 503)

    # Information.

    def model_info(self, exchange: Exchange) -> None:
        ok(exchange, information.model_info(self._config, self._scheduler, self._engine.loaded))

    def server_info(self, exchange: Exchange) -> None:
        ok(exchange, information.server_info(self._config, self._scheduler))

    def models(self, exchange: Exchange) -> None:
        name = self._engine.loaded or self._config.model
        cards = [information.model_card(self._config, name)]
        cards += [information.model_card(self._config, lora, parent=name) for lora in self._engine.loras]
        ok(exchange, {"object": "list", "data": cards})

    def model(self, exchange: Exchange) -> None:
        ok(exchange, information.model_card(self._config, self._config.model))

    def loads(self, exchange: Exchange) -> None:
        requested = query(exchange)
        rank = requested.get("dp_rank")
        if rank is not None and not rank.removeprefix("-").isdecimal():
            raise errors.malformed(
                [_unparsed("int", "dp_rank", "a valid integer", "an integer", rank)], ("get_loads", exchange)
            )
        try:
            body = information.loads(self._config, self._scheduler, requested.get("include", "all"), rank)
        except ValueError as error:
            raise errors.internal() from error
        ok(exchange, body)

    def metrics(self, exchange: Exchange) -> None:
        exchange.send(200, information.metrics(self._config, self._scheduler), information.METRICS_TYPE)

    # Requests.

    def abort(self, exchange: Exchange) -> None:
        body = control_bodies.read(exchange, "AbortReq")
        engine = self._engine
        everything = bool(body.get("abort_all", False))
        rid = body.get("rid")
        if everything:
            hit = self._scheduler.abort_all()
        else:
            hit = engine.abort(rid) if isinstance(rid, str) and rid else 0
        engine.note_abort((rid,) if isinstance(rid, str) else (), everything=everything, hit=hit)
        plain(exchange, 200)

    def flush_cache(self, exchange: Exchange) -> None:
        wait = _timeout(exchange)
        if self._busy:
            if wait <= 0:
                raise Refusal(400, _NOT_FLUSHED, b"")
            until = self._engine.loop.time() + wait
            self._engine.scheduler.pacer.after(0.01, lambda: self._flush_later(exchange, until))
            return
        self._flush(exchange)

    def _flush_later(self, exchange: Exchange, until: float) -> None:
        if not self._busy:
            self._flush(exchange)
        elif self._engine.loop.time() < until:
            self._engine.scheduler.pacer.after(0.01, lambda: self._flush_later(exchange, until))
        else:
            exchange.send(400, b"Timed out waiting for idle state.", b"")

    def _flush(self, exchange: Exchange) -> None:
        self._scheduler.cache.clear()
        exchange.send(200, _FLUSHED, b"")

    def pause(self, exchange: Exchange) -> None:
        mode = control_bodies.read(exchange, "PauseGenerationReqInput").get("mode", "abort")
        if mode == "abort":
            self._scheduler.abort_all()
        self._scheduler.pause(Pause.HOLD, retract=mode == "retract")
        ok(exchange, {"message": "Generation paused successfully.", "status": "ok"})

    def resume(self, exchange: Exchange) -> None:
        control_bodies.read(exchange, "ContinueGenerationReqInput")
        self._scheduler.resume()
        ok(exchange, {"message": "Generation continued successfully.", "status": "ok"})

    # Weights.

    def update_weights_from_disk(self, exchange: Exchange) -> None:
        body = control_bodies.read(exchange, "UpdateWeightFromDiskReqInput")
        self._take_weights(body)
        # From now on the engine reports this path as its name, whatever name it was started with.
        self._engine.loaded = body["model_path"]
        paused = self._scheduler.queued if self._scheduler.paused else 0
        message = "Succeeded to update model weights."
        if (version := body.get("weight_version")) is not None:
            message += f" Weight version updated to {version}."
        ok(exchange, {"success": True, "message": message, "num_paused_requests": paused})

    def _weights_route(self, struct: str) -> Handler:
        def update(exchange: Exchange) -> None:
            self._take_weights(control_bodies.read(exchange, struct))
            ok(exchange, {"success": True, "message": "Success"})

        return update

    def join_group(self, exchange: Exchange) -> None:
        body = control_bodies.read(exchange, "InitWeightsUpdateGroupReqInput")
        self._groups.add(body.get("group_name", _GROUP))
        ok(exchange, {"success": True, "message": "Succeeded to initialize custom process group."})

    def leave_group(self, exchange: Exchange) -> None:
        name = control_bodies.read(exchange, "DestroyWeightsUpdateGroupReqInput").get("group_name", _GROUP)
        if name not in self._groups:
            message = "The group to be destroyed does not exist."
            exchange.send(400, encode({"success": False, "message": message}))
            return
        self._groups.remove(name)
        ok(exchange, {"success": True, "message": "Succeeded to destroy custom process group."})

    def update_weight_version(self, exchange: Exchange) -> None:
        body = control_bodies.read(exchange, "UpdateWeightVersionReqInput")
        version = body["new_version"]
        # The default aborts everything; callers that do not expect it lose their rollouts.
        if body.get("abort_all_requests", True):
            self._scheduler.abort_all()
        self._scheduler.set_version(version)
        message = f"Weight version updated to {version}"
        ok(exchange, {"success": True, "message": message, "new_version": version})

    def _take_weights(self, body: dict[str, Any]) -> None:
        if body.get("abort_all_requests", False):
            self._scheduler.abort_all()
        if body.get("flush_cache", True):
            self._scheduler.cache.clear()
        if isinstance(version := body.get("weight_version"), str):
            self._scheduler.set_version(version)

    # Memory.

    def release_memory(self, exchange: Exchange) -> None:
        tags = control_bodies.read(exchange, "ReleaseMemoryOccupationReqInput").get("tags") or _MEMORY
        if self._busy:
            # The engine asserts that it is idle, and crashes where it is not.
            self._engine.on_exit(1)
            return
        self._released.update(tags)
        ok(exchange, None)

    def take_memory_back(self, exchange: Exchange) -> None:
        tags = control_bodies.read(exchange, "ResumeMemoryOccupationReqInput").get("tags") or _MEMORY
        if not self._released.issuperset(tags):
            self._engine.on_exit(1)
            return
        self._released.difference_update(tags)
        ok(exchange, None)

    @property
    def _busy(self) -> bool:
        """True if a sequence runs, or is queued while the engine is not paused."""
        scheduler = self._scheduler
        return bool(scheduler.running) or (scheduler.queued > 0 and scheduler.paused is None)

    # Adapters.

    def load_lora(self, exchange: Exchange) -> None:
        body = control_bodies.read(exchange, "LoadLoRAAdapterReqInput")
        name = body["lora_name"]
        if not self._config.enable_lora:
            self._lora_reply(exchange, _NO_LORA)
        elif name in self._engine.loras:
            self._lora_reply(exchange, f"LoRA adapter {name} is already loaded.")
        else:
            self._engine.loras[name] = body["lora_path"]
            self._lora_reply(exchange, None)

    def unload_lora(self, exchange: Exchange) -> None:
        name = control_bodies.read(exchange, "UnloadLoRAAdapterReqInput")["lora_name"]
        if not self._config.enable_lora:
            self._lora_reply(exchange, _NO_LORA)
        elif self._engine.loras.pop(name, None) is None:
            self._lora_reply(exchange, f"LoRA adapter {name} is not loaded.")
        else:
            self._lora_reply(exchange, None)

    def _lora_reply(self, exchange: Exchange, error: str | None) -> None:
        body = {
            **_LORA_FIELDS,
            "success": error is None,
            "error_message": error or "",
            "loaded_adapters": dict(self._engine.loras) if self._config.enable_lora else None,
        }
        exchange.send(200 if error is None else 400, encode(body))


def _timeout(exchange: Exchange) -> float:
    try:
        return float(query(exchange).get("timeout", 0))
    except ValueError as error:
        text = query(exchange)["timeout"]
        problem = _unparsed("float", "timeout", "a valid number", "a number", text)
        raise errors.malformed([problem], ("flush_cache", exchange)) from error


def _unparsed(kind: str, name: str, wanted: str, parsed: str, text: str) -> str:
    """Return the validator's text about a query parameter that is not a number."""
    message = f"Input should be {wanted}, unable to parse string as {parsed}"
    return f"{{'type': '{kind}_parsing', 'loc': ('query', {name!r}), 'msg': {message!r}, 'input': {text!r}}}"
