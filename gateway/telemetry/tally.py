"""The counts behind the metrics.

Owns: the counts so far, in plain lists and dictionaries. Must never enter: names and labels of metrics, the
exposition.

Only the event loop counts, so no lock is needed. An observation takes a tenth of the time that it takes with
the locked values of a client library.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import accumulate

from gateway.exchange import ExchangeRecord, ExchangeState, Gaps
from gateway.fleet.states import WorkerState
from gateway.formats.contract import Ending
from gateway.routing.rendezvous import Placement
from gateway.telemetry.buckets import Bounds, Buckets

UNKNOWN_MODEL = "unknown_model"
#: Models that are counted separately; more only while the fleet serves them, because adapters are loaded and
#: unloaded.
MODELS_LIMIT = 256

_LOOP_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
_WAIT_BOUNDS = (0.01, 0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Histogram:
    """Observations by bucket. The last element of ``counts`` is for values above all ``bounds``."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def over(self, bound: float) -> int:
        """Return the number of observations over ``bound``, which is one of the bounds."""
        first = self.bounds.index(bound) + 1
        return sum(self.counts[first:])

    def merge(self, counts: Sequence[int], total: float) -> None:
        """Add the counts of another histogram with the same bounds."""
        self.counts = [ours + theirs for ours, theirs in zip(self.counts, counts, strict=True)]
        self.total += total

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """Return pairs of (upper bound as text, observations up to it), ``+Inf`` last."""
        return zip((*map(str, self.bounds), "+Inf"), accumulate(self.counts), strict=True)


class ModelTally:
    """The histograms of one model, in seconds or tokens."""

    __slots__ = ("cached", "duration", "isl", "itl", "osl", "output_tokens", "ttft")

    def __init__(self, buckets: Buckets) -> None:
        self.duration = Histogram(buckets.request_duration)
        self.isl = Histogram(buckets.input_sequence)
        self.cached = Histogram(buckets.input_sequence)
        self.osl = Histogram(buckets.output_sequence)
        self.ttft = Histogram(buckets.ttft)
        self.itl = Histogram(buckets.itl)
        self.output_tokens = 0

    def add(self, other: ModelTally) -> None:
        """Add the counts of another model."""
        for ours, theirs in (
            (self.duration, other.duration),
            (self.isl, other.isl),
            (self.cached, other.cached),
            (self.osl, other.osl),
            (self.ttft, other.ttft),
            (self.itl, other.itl),
        ):
            ours.merge(theirs.counts, theirs.total)
        self.output_tokens += other.output_tokens


class FormatTally:
    """The counts of one format."""

    __slots__ = ("endings", "refused", "reply_bytes", "request_bytes", "retries", "routed")

    def __init__(self) -> None:
        self.endings: Counter[Ending] = Counter()
        #: rule -> requests
        self.refused: Counter[str] = Counter()
        self.request_bytes = 0
        self.reply_bytes = 0
        self.retries = 0
        self.routed = 0


class Tallies:
    """All counts of one gateway."""

    def __init__(self) -> None:
        #: (model, operation, stream, error type) of ended exchanges
        self.requests: Counter[tuple[str, str, bool, str]] = Counter()
        #: (model, operation, stream) of started exchanges
        self.begun: Counter[tuple[str, str, bool]] = Counter()
        #: (error type, code) of ended exchanges; code None: the failure is the worker's own reply
        self.failures: Counter[tuple[str, str | None]] = Counter()
        #: (worker URL, format, end state) of exchanges that reached a worker
        self.served: Counter[tuple[str, str, ExchangeState]] = Counter()
        #: (from, to) of state changes of workers
        self.transitions: Counter[tuple[WorkerState, WorkerState]] = Counter()
        #: at the home of its key or elsewhere -> requests with a routing key
        self.placements: Counter[Placement] = Counter()
        #: worker URL -> TTFT, prompt tokens and gaps of its last complete stream in this process
        self.last_streams: dict[str, tuple[float | None, int | None, Gaps | None]] = {}
        #: kind of route -> requests refused because they had no valid key
        self.unauthorized: Counter[str] = Counter()
        #: limit -> times it was reached
        self.limits: Counter[str] = Counter()
        self.models: dict[str, ModelTally] = {}
        self.formats: dict[str, FormatTally] = {}
        self.loop_delay = Histogram(_LOOP_BOUNDS)
        #: Seconds that requests were queued.
        self.waits = Histogram(_WAIT_BOUNDS)
        #: reason -> requests that the queue did not serve
        self.queue_refused: Counter[str] = Counter()
        #: running exchanges -> already in ``begun``?
        self.running: dict[ExchangeRecord, bool] = {}
        #: What ``running_now`` returns in other processes, if these tallies are a sum over processes.
        self.elsewhere: Counter[tuple[str, str, bool, bool, bool]] = Counter()

    def running_now(self) -> Counter[tuple[str, str, bool, bool, bool]]:
        """Return the number of running exchanges by (model, operation, stream, is in begun, has no token)."""
        now = self.elsewhere.copy()
        for exchange, counted in self.running.items():
            model = exchange.model or UNKNOWN_MODEL
            now[model, exchange.operation, exchange.stream, counted, exchange.first_token_at is None] += 1
        return now

    def forget_served(self, urls: Collection[str]) -> None:
        """Keep only what is counted for the workers ``urls``, as workers may get ever new addresses."""
        for gone in [key for key in self.served if key[0] not in urls]:
            del self.served[gone]
        for url in self.last_streams.keys() - urls:
            del self.last_streams[url]

    def fold(self, served: Collection[str], unknown: ModelTally) -> None:
        """Move the counts of models that no worker serves and no exchange uses to UNKNOWN_MODEL.

        So no sum decreases. ``unknown`` is the tally of UNKNOWN_MODEL.
        """
        kept = {UNKNOWN_MODEL, *served, *(exchange.model for exchange in self.running)}
        gone = [name for name in self.models if name not in kept]
        for name in gone:
            unknown.add(self.models.pop(name))
        names = set(gone)
        for labels, count in [each for each in self.requests.items() if each[0][0] in names]:
            del self.requests[labels]
            self.requests[UNKNOWN_MODEL, labels[1], labels[2], labels[3]] += count
        for label, count in [each for each in self.begun.items() if each[0][0] in names]:
            del self.begun[label]
            self.begun[UNKNOWN_MODEL, label[1], label[2]] += count

    def count_begun(self) -> None:
        """Count each running exchange in ``begun`` once, as soon as its labels are final.

        A label that changed later would make a counter decrease, which a scraper takes for a restart.
        """
        for exchange, counted in self.running.items():
            if not counted and exchange.dispatched_at is not None:
                self.running[exchange] = True
                self.begun[exchange.model or UNKNOWN_MODEL, exchange.operation, exchange.stream] += 1
