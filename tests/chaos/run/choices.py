"""The actions of each client, all determined by the seed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random

from tests.support.generate import KINDS

#: The actions of a client, with their shares in per cent.
STREAM, UNARY, LEAVE, STALL, REPEAT, ABORT = "stream", "unary", "leave", "stall", "repeat", "abort"
BAD_JSON, GARBAGE, HALF_BODY, NO_ROUTE, FATE = "bad json", "garbage", "half a body", "no route", "fate"
WEIGHTS = {
    STREAM: 27,
    UNARY: 17,
    LEAVE: 16,
    STALL: 5,
    REPEAT: 11,
    ABORT: 8,
    BAD_JSON: 3,
    GARBAGE: 3,
    HALF_BODY: 2,
    NO_ROUTE: 2,
    FATE: 6,
}
#: Ids that several clients use at once; some are prefixes of others.
SHARED_IDS = ("job", "job-1", "job-10", "job-100", "x", "träger")
#: When a client disconnects: at once, after a while, with the head of the reply, after some events.
AT_ONCE, LATER, AT_HEAD, AT_EVENT = "at once", "later", "at head", "at event"
#: Faults that a client orders from its worker, as headers of a simulated engine.
FATES = (
    ("X-Sim-Drop", "late"),
    ("X-Sim-Drop", "late-fin"),
    ("X-Sim-Cut-After", "2"),
    ("X-Sim-Fail-After", "2"),
    ("X-Sim-Status", "500"),
    ("X-Sim-Status", "429"),
    ("X-Sim-Status", "418"),
    ("X-Sim-Start-Delay", "1.0"),
)
#: Bytes that are not HTTP, or that can be read in more than one way.
GARBAGE_BYTES = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\x00\x00\r\n\r\n",
    b"GET /generate HTTP/9.9\r\n\r\n",
    b"POST /generate HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd",
    b"POST /generate HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /generate HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nnot a size\r\n",
    b"\r\n\r\n\r\n\x00\xff\xfe\r\n\r\n",
)


@dataclass(frozen=True)
class Profile:
    """The behaviour of a crowd: the share of each action, the fewest and most tokens of a request, the
    longest pause between two requests in seconds.
    """

    weights: Mapping[str, int]
    tokens: tuple[int, int]
    pause: float


#: The profiles, by the names with which a crowd is started.
PROFILES = {
    "chaos": Profile(WEIGHTS, (1, 24), 2.4),
    "soak": Profile({STREAM: 95, LEAVE: 5}, (20, 80), 0.4),
}


@dataclass(frozen=True)
class Choice:
    """A client's next request. ``pause`` is before it, ``delay`` within it, in seconds; ``events`` belongs to
    AT_EVENT.
    """

    what: str
    kind: str
    stream: bool
    tokens: int
    prompt: int
    pause: float
    delay: float
    events: int
    moment: str
    reset: bool
    shared_id: str | None
    id_in_header: bool
    headers: tuple[tuple[str, str], ...] = ()
    garbage: bytes = field(default=b"", repr=False)


def choices(seed: str, profile: Profile = PROFILES["chaos"]) -> Iterator[Choice]:
    choice = Random(seed)
    names, weights = tuple(profile.weights), tuple(profile.weights.values())
    while True:
        what = choice.choices(names, weights)[0]
        moment = choice.choice((AT_ONCE, LATER, AT_HEAD, AT_EVENT))
        stream = what in (STREAM, STALL) or (what != UNARY and choice.random() < 0.6)
        yield Choice(
            what=what,
            kind=choice.choice(tuple(KINDS)),
            stream=stream or (what == LEAVE and moment in (AT_HEAD, AT_EVENT)),
            tokens=choice.randint(40, 80) if what == STALL else choice.randint(*profile.tokens),
            prompt=choice.choice((4, 16, 64, 512)),
            pause=choice.uniform(0.0, profile.pause),
            delay=choice.uniform(0.0, 0.6),
            events=choice.randint(1, 4),
            moment=moment,
            reset=choice.random() < 0.5,
            shared_id=choice.choice(SHARED_IDS) if what == REPEAT else None,
            id_in_header=choice.random() < 0.3,
            headers=(choice.choice(FATES),) if what == FATE else (),
            garbage=choice.choice(GARBAGE_BYTES) if what == GARBAGE else b"",
        )
