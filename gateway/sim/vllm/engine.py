"""The simulated vLLM server: a generate call from its checks to its last chunk.

Owns: generate, aborts, disconnects, SIGTERM. Must never enter: control routes, the shape of replies.
"""

from __future__ import annotations

import hmac
import uuid

from gateway.sim.answers import Answer, StreamAnswer, UnaryAnswer
from gateway.sim.config import SimConfig
from gateway.sim.engine import POST, Engine, Route, bearer
from gateway.sim.exchange import EVENTS, Exchange
from gateway.sim.request_log import RequestLog
from gateway.sim.scheduler import Pause, Scheduler
from gateway.sim.script import Timing
from gateway.sim.sequence import CacheUse, Sampling, Sequence
from gateway.sim.vllm import errors, request
from gateway.sim.vllm.control import Control
from gateway.sim.vllm.reply import VllmReply
from gateway.sim.vllm.request import Request

_GUARDED = (b"/v1", b"/v2", b"/inference", b"/cohere")
_PREFIX = "generate-tokens-"
_DONE = b"data: [DONE]\n\n"


class VllmEngine(Engine):
    """A simulated vLLM server."""

    def __init__(self, config: SimConfig, log: RequestLog) -> None:
        super().__init__(config, log, Scheduler(config, 16, larger_first=False))
        self.loras: dict[str, str] = {}
        self.dead = False
        self.routes[b"/inference/v1/generate"] = Route(POST, self.start_generate, generate=True)
        self.routes.update(Control(self).routes())

    def authorized(self, exchange: Exchange, guard: str) -> bool:
        key = self.config.api_key
        if (
            key is None
            or exchange.arrival.method == b"OPTIONS"
            or not exchange.arrival.target.startswith(_GUARDED)
        ):
            return True
        return hmac.compare_digest(bearer(exchange) or b"", key.encode())

    def terminate(self) -> None:
        """Refuse new connections; abort what runs, at once or after the shutdown timeout."""
        self.terminating = True
        self.on_stop_listening()
        if self.config.hang_on_sigterm:
            self.scheduler.pause(Pause.HOLD)
        elif self.config.shutdown_timeout:
            self.loop.call_later(self.config.shutdown_timeout, self._shut_down)
            self.log.when(lambda: self.scheduler.idle, self._shut_down)
        else:
            self._shut_down()

    def _shut_down(self) -> None:
        self.scheduler.abort_all()
        # Not called directly: the last replies are sent first.
        self.loop.call_soon(self.on_exit, 0)

    # Generate.

    def generate(self, exchange: Exchange, timing: Timing) -> None:
        if not (self.config.enable_scale_out or self.config.skip_tokenizer):
            raise errors.scale_out_off()
        wanted = request.read(request.decode(exchange), self.config)
        self._check_admission(wanted)
        headers, id = self._id(exchange, wanted)
        if wanted.stream:
            exchange.start(200, EVENTS, extra=headers)
        try:
            request.check_transport(id, wanted)
            self._check_engine(exchange, wanted)
        except errors.StreamError as late:
            if not wanted.stream:
                raise late.refusal() from late
            exchange.write(late.event())
            exchange.end(_DONE)
            return
        self._run(exchange, wanted, id, timing)

    def _check_admission(self, wanted: Request) -> None:
        """Check what is refused with a status, streamed or not. Raises Refusal."""
        if wanted.model and wanted.model != self.config.model and wanted.model not in self.loras:
            raise errors.unknown_model(wanted.model, [self.config.model, *self.loras])
        if self.dead:
            message = "The server had an error while processing your request."
            raise errors.refusal(message, "InternalServerError", 500)
        if wanted.params.max_tokens is None and len(wanted.prompt) >= self.config.max_model_len:
            raise errors.invalid(request.too_long(len(wanted.prompt), self.config.max_model_len))
        limit = self.config.max_queued
        if limit is not None and len(self.scheduler.running) + self.scheduler.queued >= limit:
            raise errors.busy()

    def _check_engine(self, exchange: Exchange, wanted: Request) -> None:
        """Check what the engine core finds only after a stream has begun. Raises StreamError."""
        rank = exchange.arrival.header("x-data-parallel-rank") or ""
        if rank.lstrip("-").isdecimal() and rank.strip("0"):
            raise errors.StreamError(f"data_parallel_rank {rank} is out of range [0, 1).")
        if self.config.skip_tokenizer and max(wanted.prompt) >= self.config.vocab_size:
            # Without a tokenizer the engine does not validate ids, and an unknown one crashes it.
            self.dead = True
            self.loop.call_soon(self.on_exit, 1)
            message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
            raise errors.StreamError(message, kind="InternalServerError", code=500)
        request.check_engine_rules(wanted, self.config)
        if self.scheduler.paused is Pause.REJECT:
            raise errors.paused()

    def _id(self, exchange: Exchange, wanted: Request) -> tuple[bytes, str]:
        """Return the header lines to echo, and the engine's id of this request."""
        header = exchange.arrival.header("x-request-id")
        own = header if header is not None else wanted.request_id
        id = own if own is not None else uuid.uuid4().hex[:16]
        echo = b""
        if self.config.enable_request_id_headers:
            echo = b"x-request-id: %b\r\n" % (header or uuid.uuid4().hex).encode("latin-1", "replace")
        return echo, _PREFIX + id

    def _run(self, exchange: Exchange, wanted: Request, id: str, timing: Timing) -> None:
        reply = VllmReply(id, wanted, self.config)
        answer: Answer
        if wanted.stream:
            interval = max(self.config.stream_interval, wanted.params.interval)
            answer = StreamAnswer(self, exchange, timing, reply, interval)
        else:
            answer = UnaryAnswer(self, exchange, timing, reply)
        sequences = [self._sequence(wanted, id, index, timing, answer) for index in range(wanted.params.n)]
        exchange.arrival.ids = [id]
        exchange.on_gone = answer.drop
        answer.run(sequences, self.scheduler.submit)

    def _sequence(self, wanted: Request, id: str, index: int, timing: Timing, answer: Answer) -> Sequence:
        return Sequence(
            id=id,
            prompt=wanted.prompt,
            packed=wanted.packed,
            sampling=self._sampling(wanted, index, timing),
            timing=timing,
            listener=answer,
            index=index,
            priority=wanted.priority,
            cache=CacheUse(wanted.namespace, 0 if wanted.params.prompt_logprobs is not None else None),
        )

    def _sampling(self, wanted: Request, index: int, timing: Timing) -> Sampling:
        params = wanted.params
        draw = self.scheduler.draw(params.seed, index, greedy=params.greedy)
        if timing.tokens is not None:
            return Sampling(limit=timing.tokens, draw=draw)
        room = self.config.max_model_len - len(wanted.prompt)
        return Sampling(
            limit=room if params.max_tokens is None else min(room, params.max_tokens),
            minimum=params.min_tokens,
            stop_ids=params.stop_token_ids,
            eos=frozenset() if params.ignore_eos else frozenset({self.config.eos_token_id}),
            stop=params.stop,
            draw=draw,
            allowed=params.allowed,
            bias=params.bias,
        )
