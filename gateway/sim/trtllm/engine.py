"""The simulated TensorRT-LLM server: its routes, and a completions call from its checks to its last chunk.

Owns: completions, disconnects, information, memory and weights, SIGTERM. Must never enter: the shape of
replies.
"""

from __future__ import annotations

import json
from itertools import count
from typing import Any

from gateway.cards.structural_tag import KEY
from gateway.sim.answers import Answer, StreamAnswer, UnaryAnswer
from gateway.sim.config import SimConfig
from gateway.sim.engine import GET, POST, Engine, Handler, Route, ok, plain, wall_clock
from gateway.sim.exchange import EVENTS, TEXT, Exchange
from gateway.sim.request_log import RequestLog
from gateway.sim.scheduler import Pause, Scheduler
from gateway.sim.script import Timing
from gateway.sim.sequence import Sampling, Sequence
from gateway.sim.tokens import pack
from gateway.sim.trtllm import errors, request
from gateway.sim.trtllm.kv_events import KvEvents
from gateway.sim.trtllm.reply import TrtllmReply
from gateway.sim.trtllm.request import Request

#: Tokens of a block of the KV cache.
BLOCK = 32
#: Seconds between looks for a client that has disconnected.
DISCONNECT_POLL = 1.0
VERSION = "1.2.1"


class TrtllmEngine(Engine):
    """A simulated TensorRT-LLM server. It has no API keys."""

    def __init__(self, config: SimConfig, log: RequestLog) -> None:
        scheduler = Scheduler(config, BLOCK, larger_first=True)
        super().__init__(config, log, scheduler)
        self._block = scheduler.cache.page
        self._blocks = max(1, config.cache_tokens // self._block)
        self._events = KvEvents(self._block, self._blocks, config.max_model_len)
        self._numbers = count(1)
        self._iterations = 0
        self._iterations_read = 0
        self.routes[b"/v1/completions"] = Route(POST, self.start_generate, generate=True)
        self.routes |= {path: Route(GET, handler) for path, handler in self._information().items()}
        self.routes |= {path: Route(POST, handler) for path, handler in self._calls().items()}

    def authorized(self, exchange: Exchange, guard: str) -> bool:
        return True

    def terminate(self) -> None:
        """Refuse new connections, and end when nothing runs any more."""
        self.terminating = True
        self.on_stop_listening()
        self.log.when(lambda: self.scheduler.idle, self._exit_soon)

    def _exit_soon(self) -> None:
        # Not called directly: the last replies are sent first.
        self.loop.call_soon(self.on_exit, 0)

    # Completions.

    def generate(self, exchange: Exchange, timing: Timing) -> None:
        wanted = request.read(exchange.arrival.body, self.config)
        number = next(self._numbers)
        reply = TrtllmReply(number, wanted, self.config)
        answer: Answer
        if wanted.stream:
            exchange.start(200, EVENTS)
            answer = StreamAnswer(self, exchange, timing, reply, self.config.stream_interval)
        else:
            answer = UnaryAnswer(self, exchange, timing, reply)
        exchange.arrival.ids = [str(number)]

        def drop_later() -> None:
            self.loop.call_later(DISCONNECT_POLL, answer.drop)

        exchange.on_gone = drop_later
        answer.run(self._sequences(wanted, str(number), timing, answer), self._submit)

    def _submit(self, sequence: Sequence) -> None:
        self._iterations += 1
        self._events.follow(sequence)
        self.scheduler.submit(sequence)

    def _sequences(self, wanted: Request, id: str, timing: Timing, answer: Answer) -> list[Sequence]:
        return [
            Sequence(
                id=id,
                prompt=prompt,
                packed=pack(prompt),
                sampling=self._sampling(wanted, prompt, sample, timing),
                timing=timing,
                listener=answer,
                index=number * wanted.n + sample,
            )
            for number, prompt in enumerate(wanted.prompts)
            for sample in range(wanted.n)
        ]

    def _sampling(self, wanted: Request, prompt: list[int], sample: int, timing: Timing) -> Sampling:
        draw = self.scheduler.draw(wanted.seed, sample, greedy=wanted.greedy)
        if timing.tokens is not None:
            return Sampling(limit=timing.tokens, draw=draw)
        # More than is left of the context is no error: the reply is just shorter.
        room = self.config.max_model_len - len(prompt)
        return Sampling(
            limit=room if wanted.max_tokens is None else min(room, wanted.max_tokens),
            minimum=wanted.min_tokens,
            stop_ids=wanted.stop_token_ids,
            eos=frozenset() if wanted.ignore_eos else frozenset({self.config.eos_token_id}),
            stop=wanted.stop if wanted.detokenize else (),
            draw=draw,
        )

    # Information.

    def _information(self) -> dict[bytes, Handler]:
        table: dict[bytes, Handler] = {
            b"/health": self._health,
            b"/health_generate": self._health_generate,
            b"/version": lambda exchange: ok(exchange, {"version": VERSION}),
            b"/v1/models": self._models,
            b"/server_info": lambda exchange: ok(exchange, {"disaggregated_params": {}}),
            b"/metrics": self._metrics,
            b"/perf_metrics": lambda exchange: ok(exchange, []),
        }
        if self.config.enable_metrics:
            table[b"/prometheus/metrics"] = self._prometheus
        return table

    def _health(self, exchange: Exchange) -> None:
        down = "LLM is unavailable. Please check the server logs for more details."
        plain(exchange, 503, down) if self.starting else plain(exchange, 200)

    def _health_generate(self, exchange: Exchange) -> None:
        plain(exchange, 200, "Generation health check OK")

    def _models(self, exchange: Exchange) -> None:
        created = int(wall_clock())
        card = {"id": self.config.model, "object": "model", "created": created, "owned_by": "tensorrt_llm"}
        policy = self.config.dyn_structural_tag
        # A real server has no such member; without it the policy is off by default.
        reported = {KEY: policy.member()} if policy.enabled else {}
        ok(exchange, {"object": "list", "data": [{**card, **reported}]})

    def _metrics(self, exchange: Exchange) -> None:
        """Answer with the statistics since the last time; only the latest iteration of them is kept here."""
        scheduler = self.scheduler
        done = self._iterations + scheduler.generated_tokens
        new, self._iterations_read = done > self._iterations_read, done
        used = self._used_blocks
        cache = {"maxNumBlocks": self._blocks, "usedNumBlocks": used, "tokensPerBlock": self._block}
        stats = {
            "iter": done,
            "numActiveRequests": len(scheduler.running),
            "numQueuedRequests": scheduler.queued,
            "kvCacheStats": {**cache, "freeNumBlocks": self._blocks - used},
            "attentionDpRank": 0,
        }
        ok(exchange, [stats] if new or scheduler.running else [])

    @property
    def _used_blocks(self) -> int:
        return min(self._blocks, -(-self.scheduler.used_tokens // self._block))

    def _prometheus(self, exchange: Exchange) -> None:
        name, length = self.config.model, self.config.max_model_len
        labels = f'model_name="{name}",served_model_name="{name}",max_model_len="{length}"'
        gauges = {
            f"model_config_info{{{labels}}}": 1,
            "num_requests_running": len(self.scheduler.running),
            "num_requests_waiting": self.scheduler.queued,
            "kv_cache_utilization": self._used_blocks / self._blocks,
            "kv_cache_max_blocks": self._blocks,
            "kv_cache_tokens_per_block": self._block,
            "max_num_active_requests": self.config.max_running or 2048,
        }
        text = "".join(f"trtllm_{row} {float(value)}\n" for row, value in gauges.items())
        exchange.send(200, text.encode(), TEXT)

    # Calls.

    def _calls(self) -> dict[bytes, Handler]:
        return {
            b"/kv_cache_events": lambda exchange: ok(exchange, self._events.drain()),
            b"/release_memory": self._release_memory,
            b"/resume_memory": self._resume_memory,
            b"/update_weights": self._update_weights,
        }

    def _release_memory(self, exchange: Exchange) -> None:
        _body(exchange)
        self.scheduler.pause(Pause.HOLD)
        ok(exchange, {"status": "success"})

    def _resume_memory(self, exchange: Exchange) -> None:
        _body(exchange)
        self.scheduler.resume()
        ok(exchange, {"status": "success"})

    def _update_weights(self, exchange: Exchange) -> None:
        _body(exchange)
        self.scheduler.cache.clear()
        ok(exchange, {"status": "success"})


def _body(exchange: Exchange) -> dict[str, Any]:
    """Return the body of a call, {} without one. Raises Refusal."""
    try:
        found = json.loads(exchange.arrival.body or b"{}")
    except (ValueError, RecursionError) as error:
        raise errors.invalid("json_invalid", ("0",), "JSON decode error", {}) from error
    return found if isinstance(found, dict) else {}
