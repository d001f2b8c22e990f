"""The simulated SGLang server: a generate call from its checks to its last event.

Owns: generate, aborts, disconnects, SIGTERM. Must never enter: control routes, the shape of replies.
"""

from __future__ import annotations

import hmac
import uuid
from collections.abc import Callable

from gateway.sim.answers import Answer, StreamAnswer, UnaryAnswer
from gateway.sim.config import SimConfig
from gateway.sim.engine import POST_OR_PUT, Engine, Route, bearer, wall_clock
from gateway.sim.exchange import Exchange
from gateway.sim.request_log import RequestLog
from gateway.sim.scheduler import Scheduler
from gateway.sim.script import Timing
from gateway.sim.sequence import CacheUse, Finish, Sampling, Sequence
from gateway.sim.sglang import errors, generate_body, published_schema, request
from gateway.sim.sglang.control import Control
from gateway.sim.sglang.reply import SglangReply
from gateway.sim.sglang.request import Item, Request

_OPEN = (b"/health", b"/ready", b"/metrics", b"/_sim")
_DONE = b"data: [DONE]\n\n"


class SglangEngine(Engine):
    """A simulated SGLang server."""

    def __init__(self, config: SimConfig, log: RequestLog) -> None:
        super().__init__(config, log, Scheduler(config, 1, larger_first=True))
        #: Loaded adapters, name to path.
        self.loras: dict[str, str] = {}
        #: The path of weights that were loaded after the start, None before.
        self.loaded: str | None = None
        self.routes[b"/generate"] = Route(POST_OR_PUT, self.start_generate, "api", generate=True)
        self.routes.update(Control(self).routes())

    def authorized(self, exchange: Exchange, guard: str) -> bool:
        if exchange.arrival.method == b"OPTIONS" or exchange.arrival.target.startswith(_OPEN):
            return True
        admin = self.config.admin_api_key if guard == "admin" else None
        wanted = admin or self.config.api_key
        return wanted is None or hmac.compare_digest(bearer(exchange) or b"", wanted.encode())

    def terminate(self) -> None:
        """Fail health checks, go on serving requests, and exit when none is left."""
        self.terminating = True
        self.loop.call_later(self.config.drain_poll, self._leave_if_idle)

    def _leave_if_idle(self) -> None:
        if not self.scheduler.idle:
            self.loop.call_later(self.config.drain_poll, self._leave_if_idle)
        else:
            self.on_exit(0)

    def abort(self, rid: str) -> int:
        """End the request ``rid`` and, as the engine does, every other whose id begins with it."""
        return self.scheduler.abort_prefix(rid) if self.scheduler.in_flight(rid) else 0

    # Generate.

    def generate(self, exchange: Exchange, timing: Timing) -> None:
        body = generate_body.read_generate(exchange)
        published_schema.check(body)
        streamed = bool(body.get("stream", False))
        if streamed:
            exchange.start()
        try:
            wanted = request.read(body, self.config, set(self.loras))
            self._check_ids(wanted)
        except errors.ValueFault as fault:
            if not streamed:
                raise errors.invalid(str(fault)) from fault
            exchange.write(errors.event(str(fault)))
            exchange.end(_DONE)
        except errors.Fault as fault:
            if not streamed:
                raise errors.internal() from fault
            exchange.cut()
        except errors.Crash:
            self.on_exit(1)
        else:
            self._run(exchange, wanted, timing, streamed=streamed)

    def _check_ids(self, wanted: Request) -> None:
        if wanted.n > 1:
            return  # their ids are made anew
        for item in wanted.items:
            if self.scheduler.in_flight(item.rid):
                raise errors.ValueFault(f"Duplicate request ID detected: {item.rid}")

    def _run(self, exchange: Exchange, wanted: Request, timing: Timing, *, streamed: bool) -> None:
        answer = self._answer(exchange, wanted, timing, streamed=streamed)
        sequences = [
            self._sequence(wanted, index, timing, answer) for index in range(len(wanted.items) * wanted.n)
        ]
        exchange.arrival.ids = [sequence.id for sequence in sequences]
        received = self.loop.time()
        leave = self._leave_stream if streamed else self._leave_unary
        exchange.on_gone = lambda: leave(answer, wanted, received)
        if wanted.n == 1:
            answer.run(sequences, self._submit)
        else:
            self._prefill_first(answer, wanted, sequences, timing)

    def _answer(self, exchange: Exchange, wanted: Request, timing: Timing, *, streamed: bool) -> Answer:
        reply = SglangReply(wanted, self.config, wall_clock())
        if not streamed:
            return _Unary(self, exchange, timing, reply)
        interval = wanted.items[0].params.interval or self.config.stream_interval
        return StreamAnswer(self, exchange, timing, reply, interval)

    def _sequence(self, wanted: Request, index: int, timing: Timing, answer: Answer) -> Sequence:
        at, sample = divmod(index, wanted.n)
        item = wanted.items[at]
        return Sequence(
            id=item.rid if wanted.n == 1 else uuid.uuid4().hex,
            prompt=item.prompt,
            packed=item.packed,
            sampling=self._sampling(item, sample, timing),
            timing=timing,
            listener=answer,
            index=index,
            priority=wanted.priority,
            cache=CacheUse(item.namespace, _cache_limit(item)),
        )

    def _sampling(self, item: Item, sample: int, timing: Timing) -> Sampling:
        params = item.params
        draw = self.scheduler.draw(params.seed, sample, greedy=params.greedy)
        if timing.tokens is not None:
            return Sampling(limit=timing.tokens, draw=draw)
        eos = frozenset({self.config.eos_token_id})
        return Sampling(
            limit=item.limit,
            minimum=params.min_new_tokens,
            stop_ids=frozenset() if params.ignore_eos else params.stop_token_ids,
            eos=frozenset() if params.ignore_eos else eos,
            stop=params.stop,
            stop_regex=params.stop_regex,
            draw=draw,
            bias=params.bias,
        )

    def _submit(self, sequence: Sequence) -> None:
        """Submit ``sequence`` to the scheduler, or refuse it."""
        scheduler = self.scheduler
        start = sequence.cache.limit
        if start is not None and start > len(sequence.prompt):
            message = (
                f"req.logprob_start_len={start} is higher than the number of input tokens "
                f"len(req.origin_input_ids)={len(sequence.prompt)}. Please use a smaller logprob_start_len."
            )
            scheduler.refuse(sequence, Finish("abort", message=message, status=400))
            return
        limit = self.config.max_queued
        if limit is None or not scheduler.full or scheduler.queued < limit:
            scheduler.submit(sequence)
            return
        last = scheduler.waiting[-1] if scheduler.queued else None
        if last is not None and scheduler.rank(sequence) < scheduler.rank(last):
            scheduler.evict(last, _overload("The request is aborted by a higher priority request."))
            scheduler.submit(sequence)
        else:
            scheduler.refuse(sequence, _overload("The request queue is full."))

    def _prefill_first(
        self, answer: Answer, wanted: Request, sequences: list[Sequence], timing: Timing
    ) -> None:
        """Compute each prompt once, under an id of its own; its samples start when that is done."""
        scheduler = self.scheduler
        prefill = _Prefill(
            start=lambda: answer.run(sequences, self._submit),
            refuse=lambda finish: answer.run(sequences, lambda sample: scheduler.refuse(sample, finish)),
        )
        prompts = []
        for at in range(len(wanted.items)):
            sequence = self._sequence(wanted, at * wanted.n, timing, answer)
            sequence.sampling = Sampling(limit=0)
            sequence.listener = prefill
            prompts.append(sequence)
        prefill.left = len(prompts)
        # A client that disconnects now stops these.
        answer.sequences = prompts
        for sequence in prompts:
            scheduler.submit(sequence)

    # Disconnects.

    def _leave_stream(self, answer: Answer, wanted: Request, received: float) -> None:
        if not wanted.background:
            self._abandon(answer)

    def _leave_unary(self, answer: Answer, wanted: Request, received: float) -> None:
        if wanted.background:
            return
        poll = self.config.unary_disconnect_poll
        if not poll:
            self._abandon(answer)
            return
        self.loop.call_later(poll - (self.loop.time() - received) % poll, self._abandon, answer)

    def _abandon(self, answer: Answer) -> None:
        ids = [sequence.id for sequence in answer.sequences if sequence.finish is None]
        answer.drop()
        for id in ids:
            self.scheduler.abort_prefix(id)


class _Unary(UnaryAnswer):
    """A unary answer. A prompt that the scheduler refuses fails the request and stops its other prompts."""

    def finished(self, sequence: Sequence) -> None:
        finish = sequence.finish
        if finish is None or finish.status is None or self.exchange.done:
            super().finished(sequence)
            return
        errors.refused(finish).answer(self.exchange)
        self.drop()


class _Prefill:
    """The prompts of a request with several samples: starts the samples when they are done, or ends them
    unstarted.
    """

    streams = False

    def __init__(self, *, start: Callable[[], None], refuse: Callable[[Finish], None]) -> None:
        self.left = 0
        self._start = start
        self._refuse = refuse
        self._aborted: Finish | None = None

    def ready(self) -> bool:
        return True

    def progress(self, sequence: Sequence) -> None:
        """Do nothing: no token is generated."""

    def finished(self, sequence: Sequence) -> None:
        self.left -= 1
        if sequence.finish is not None and sequence.finish.kind == "abort":
            self._aborted = sequence.finish
        if self.left:
            return
        if self._aborted is not None:
            self._refuse(self._aborted)
        else:
            self._start()


def _overload(message: str) -> Finish:
    return Finish("abort", message=message, status=503, queued=True)


def _cache_limit(item: Item) -> int | None:
    """Return how many tokens may come from the cache: positions whose log probabilities are wanted must be
    computed.
    """
    if item.logprobs is None or item.logprobs.start < 0:
        return None
    return item.logprobs.start
