"""The record of a worker: what is known of it before its first probe, as given at its registration.

Owns: the record, its limits and its JSON. Must never enter: a worker's answers, a state, I/O. A store keeps
nothing else about a worker, but for cordons.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from gateway.cards.members import NAMES, read, write
from gateway.cards.values import NOTHING, CardValues
from gateway.upstream.address import Address, identity_of

#: The role of a worker that runs prompts and generates.
REGULAR = "regular"
WORKER_TYPES = (REGULAR, "prefill", "decode", "encode")
#: The most characters of a URL and of any other text, and the largest number of labels.
URL_LIMIT, TEXT_LIMIT, LABELS_LIMIT = 2048, 256, 64
#: The largest absolute value of a priority.
PRIORITY_LIMIT = 1 << 31
#: The label that distinguishes successive engines at one URL, if the writer of the record knows it.
INCARNATION = "kubernetes/uid"
#: The name of ``WorkerRecord.cordoned`` in JSON; ``cordoned`` is read as well.
_CORDONED = "held"


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker as it was registered. Records with the same values are equal. Raises ValueError.

    ``url`` is as it was given; other spellings of it name the same worker (``identity``). ``format`` is its
    format, None: its probes find out. A worker that is ``cordoned`` is so from the moment it is added; the
    JSON of a record calls that ``held``, as older gateways do. ``card`` is what it says for the worker's
    card; in JSON its members are beside the others. ``priority`` and ``labels`` are stored and shown only.
    """

    url: str
    format: str | None = None
    model: str | None = None
    worker_type: str = REGULAR
    bootstrap_port: int | None = None
    priority: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)
    cordoned: bool = False
    card: CardValues = field(default=NOTHING, hash=False)

    def __post_init__(self) -> None:
        _text("url", self.url, URL_LIMIT)
        Address.parse(self.url)
        for name in ("format", "model"):
            if getattr(self, name) is not None:
                _text(name, getattr(self, name), TEXT_LIMIT)
        if self.worker_type not in WORKER_TYPES:
            raise ValueError(f"worker_type must be one of {', '.join(WORKER_TYPES)}")
        _number("bootstrap_port", self.bootstrap_port, 1, 65535)
        _number("priority", self.priority, -PRIORITY_LIMIT, PRIORITY_LIMIT)
        _labels(self.labels)
        object.__setattr__(self, "labels", dict(self.labels))  # a copy that nobody else can change
        if not isinstance(self.cordoned, bool):
            raise ValueError(f"{_CORDONED} must be true or false")

    @property
    def identity(self) -> str:
        """The identity of its URL (gateway.upstream.address)."""
        return identity_of(self.url)

    @property
    def incarnation(self) -> str:
        """The id of this run of the engine at its URL; "": not known."""
        return self.labels.get(INCARNATION, "")

    def succeeds(self, incarnation: str) -> bool:
        """Return True if the incarnation is known to be another one than ``incarnation``."""
        return "" not in (incarnation, self.incarnation) and incarnation != self.incarnation

    @classmethod
    def of(cls, members: Mapping[str, Any]) -> WorkerRecord:
        """Return a record with the members of a JSON object; unknown members are ignored, null means unset.

        Raises ValueError, which names the member at fault.
        """
        if members.get("url") is None:
            raise ValueError("url is missing")
        known = {each.name: each.name for each in fields(cls) if each.name != "card"} | {
            _CORDONED: "cordoned"
        }
        given = {known[name]: value for name, value in members.items() if name in known and value is not None}
        return cls(**given, card=read(members))

    @classmethod
    def from_json(cls, text: str | bytes) -> WorkerRecord:
        """Parse the JSON that ``to_json`` of any version wrote. Raises ValueError."""
        try:
            members = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"a worker's record is not JSON: {error}") from error
        if not isinstance(members, dict):
            raise ValueError("a worker's record must be a JSON object")
        return cls.of(members)

    def to_json(self) -> str:
        """Return one JSON object on one line, without the members that have their default."""
        defaults: dict[str, Any] = {each.name: each.default for each in fields(self)} | {"labels": {}}
        members = {name: value for name in defaults if (value := getattr(self, name)) != defaults[name]}
        if members.pop("cordoned", False):
            members[_CORDONED] = True
        members.pop("card", None)
        return json.dumps(members | write(self.card))


#: The names that a record may have in JSON.
MEMBERS = {each.name for each in fields(WorkerRecord)} - {"card"} | {_CORDONED} | NAMES


def is_text(value: str) -> bool:
    """Return True if ``value`` is a valid text of a record."""
    return 0 < len(value) <= TEXT_LIMIT and value.isprintable()


def _text(name: str, value: object, limit: int) -> None:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a text that is not empty")
    if len(value) > limit:
        raise ValueError(f"{name} must have at most {limit} characters")
    if not value.isprintable():
        raise ValueError(f"{name} must not hold control characters")


def _number(name: str, value: object, least: int, most: int) -> None:
    # A bool is an int in Python, but not a number in JSON.
    if value is not None and (type(value) is not int or not least <= value <= most):
        raise ValueError(f"{name} must be an integer from {least} to {most}")


def _labels(labels: object) -> None:
    if not isinstance(labels, Mapping):
        raise ValueError("labels must be an object")
    if len(labels) > LABELS_LIMIT:
        raise ValueError(f"labels must be at most {LABELS_LIMIT}")
    for name, value in labels.items():
        _text("a label's name", name, TEXT_LIMIT)
        if not isinstance(value, str) or len(value) > TEXT_LIMIT:
            raise ValueError(f"label {name} must be a text of at most {TEXT_LIMIT} characters")
