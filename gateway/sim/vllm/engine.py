"""The vLLM server: what happens to a generate call, from its checks to its last chunk.

Owns: generate, aborts, leaving clients, SIGTERM. Must never enter: control routes, the shape of replies.
"""

from __future__ import annotations

import hmac
import uuid

from gateway.sim.answers import Answer, StreamAnswer, UnaryAnswer
from gateway.sim.arrivals import AbortCall, Log
from gateway.sim.config import SimConfig
from gateway.sim.engine import POST, Engine, Route, bearer
from gateway.sim.http1 import EVENTS, Call
from gateway.sim.scheduler import Pause, Sampling, Scheduler, Sequence
from gateway.sim.script import Timing
from gateway.sim.vllm import errors, request
from gateway.sim.vllm.control import Control
from gateway.sim.vllm.reply import VllmReply
from gateway.sim.vllm.request import Request

_GUARDED = (b"/v1", b"/v2", b"/inference", b"/cohere")
_PREFIX = "generate-tokens-"
_DONE = b"data: [DONE]\n\n"


class VllmEngine(Engine):
    """A simulated vLLM server."""

    def __init__(self, config: SimConfig, log: Log) -> None:
        super().__init__(config, log, Scheduler(config, 16, larger_first=False))
        self.loras: dict[str, str] = {}
        self.dead = False
        self.routes[b"/inference/v1/generate"] = Route(POST, self.start_generate, generate=True)
        self.routes.update(Control(self).routes())

    def authorized(self, call: Call, guard: str) -> bool:
        key = self.config.api_key
        if key is None or call.arrival.method == b"OPTIONS" or not call.arrival.target.startswith(_GUARDED):
            return True
        return hmac.compare_digest(bearer(call) or b"", key.encode())

    def terminate(self) -> None:
        """New connections are refused; what runs is aborted at once, or after the shutdown timeout."""
        self.terminating = True
        self.on_deaf()
        if self.config.hang_on_sigterm:
            self.scheduler.pause(Pause.HOLD)
        elif self.config.shutdown_timeout and (self.scheduler.running or self.scheduler.queued):
            self.loop.call_later(self.config.shutdown_timeout, self._shut_down)
            self.log.when(lambda: not self.scheduler.running and not self.scheduler.queued, self._shut_down)
        else:
            self._shut_down()

    def _shut_down(self) -> None:
        self.abort_all()
        # In the loop's next turns the last replies leave.
        self.loop.call_soon(self.on_exit, 0)

    # Aborts.

    def abort(self, ids: tuple[str, ...]) -> int:
        """End the requests with exactly these prefixed ids, all samples and all that share one."""
        wanted = set(ids)
        return len(self.scheduler.abort(lambda sequence: sequence.id in wanted))

    def abort_all(self) -> int:
        return len(self.scheduler.abort(lambda sequence: True))

    def note_abort(self, ids: tuple[str, ...], *, everything: bool, hit: int) -> None:
        """Remember a call of an abort route."""
        self.log.aborts.append(AbortCall(ids, everything, hit, self.loop.time()))
        self.log.changed()

    # Generate.

    def generate(self, call: Call, timing: Timing) -> None:
        if not (self.config.enable_scale_out or self.config.skip_tokenizer):
            raise errors.scale_out_off()
        wanted = request.read(request.decode(call), self.config)
        self._check_admission(wanted)
        headers, id = self._id(call, wanted)
        if wanted.stream:
            call.start(200, EVENTS, extra=headers)
        try:
            self._check_engine(wanted)
        except errors.Late as late:
            if not wanted.stream:
                raise late.refusal() from late
            call.write(late.event())
            call.end(_DONE)
            return
        self._run(call, wanted, id, timing)

    def _check_admission(self, wanted: Request) -> None:
        """What is refused with a status, streamed or not. Raises Refusal."""
        if wanted.model and wanted.model != self.config.model and wanted.model not in self.loras:
            raise errors.unknown_model(wanted.model, [self.config.model, *self.loras])
        if self.dead:
            message = "The server had an error while processing your request."
            raise errors.refusal(message, "InternalServerError", 500)
        if wanted.max_tokens is None and len(wanted.prompt) >= self.config.max_model_len:
            raise errors.invalid(request.too_long(len(wanted.prompt), self.config.max_model_len))
        limit = self.config.max_queued
        if limit is not None and len(self.scheduler.running) + self.scheduler.queued >= limit:
            raise errors.busy()

    def _check_engine(self, wanted: Request) -> None:
        """What the engine finds, late in a stream. Raises Late."""
        if self.config.skip_tokenizer and max(wanted.prompt) >= self.config.vocab_size:
            # Nothing looks at ids without a tokenizer, and the engine's process dies of it.
            self.dead = True
            self.loop.call_soon(self.on_exit, 1)
            message = "EngineCore encountered an issue. See stack trace (above) for the root cause."
            raise errors.Late(message, kind="InternalServerError", code=500)
        request.check_engine_rules(wanted, self.config)
        if self.scheduler.paused is Pause.REJECT:
            raise errors.paused()

    def _id(self, call: Call, wanted: Request) -> tuple[bytes, str]:
        """Header lines to echo, and the engine's id of this request."""
        header = call.arrival.header("x-request-id")
        own = header if header is not None else wanted.request_id
        id = own if own is not None else uuid.uuid4().hex[:16]
        echo = b""
        if self.config.enable_request_id_headers:
            echo = b"x-request-id: %b\r\n" % (header or uuid.uuid4().hex).encode("latin-1", "replace")
        return echo, _PREFIX + id

    def _run(self, call: Call, wanted: Request, id: str, timing: Timing) -> None:
        reply = VllmReply(id, wanted, self.config)
        answer: Answer
        if wanted.stream:
            interval = max(self.config.stream_interval, int(wanted.sampling.get("stream_interval", 1)))
            merge = self.config.merge_unread
            answer = StreamAnswer(
                call, timing, self.scheduler, self.log, reply, interval=interval, merge=merge
            )
        else:
            answer = UnaryAnswer(call, timing, self.scheduler, self.log, reply)
        sequences = [self._sequence(wanted, id, index, timing, answer) for index in range(wanted.n)]
        call.arrival.ids = [id]
        call.on_gone = answer.drop
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
            namespace=wanted.namespace,
            cache_limit=0 if wanted.prompt_logprobs is not None else None,
        )

    def _sampling(self, wanted: Request, index: int, timing: Timing) -> Sampling:
        given = wanted.sampling
        draw = self.scheduler.draw(given.get("seed"), index, wanted.greedy)
        if timing.tokens is not None:
            return Sampling(limit=timing.tokens, draw=draw)
        room = self.config.max_model_len - len(wanted.prompt)
        stop = given.get("stop") or ()
        bias = given.get("logit_bias")
        return Sampling(
            limit=room if wanted.max_tokens is None else min(room, wanted.max_tokens),
            minimum=given.get("min_tokens", 0),
            stop_ids=frozenset(given.get("stop_token_ids") or ()),
            eos=frozenset() if given.get("ignore_eos") else frozenset({self.config.eos_token_id}),
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            draw=draw,
            allowed=given.get("allowed_token_ids"),
            bias={int(key): float(value) for key, value in bias.items()} if bias else None,
        )
