"""The gateway's annotations of a pod or an EndpointSlice.

Owns: the names of the annotations, and their valid values. Must never enter: an address, readiness.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.cards.members import read
from gateway.cards.values import NOTHING, CardValues
from gateway.stores.record import WORKER_TYPES

PREFIX = "tito-gateway/"
SCHEMES = ("http", "https")


class BadAnnotation(ValueError):
    """An annotation has an invalid value; the message names it."""


@dataclass(frozen=True, slots=True)
class Annotations:
    """The annotations of one object.

    ``ports`` are numbers or names; ``unknown`` are unknown names with the prefix.
    """

    ports: tuple[int | str, ...] = ()
    scheme: str | None = None
    format: str | None = None
    model: str | None = None
    worker_type: str = WORKER_TYPES[0]
    bootstrap_port: int | None = None
    priority: int | None = None
    vocab_size: int | None = None
    held: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    card: CardValues = NOTHING
    unknown: tuple[str, ...] = ()

    @classmethod
    def read(cls, annotations: Mapping[str, str]) -> Annotations:
        """Parse the annotations with the gateway's prefix. Raises BadAnnotation."""
        given = {
            name.removeprefix(PREFIX): value.strip()
            for name, value in annotations.items()
            if name.startswith(PREFIX)
        }
        return cls(
            ports=tuple(_port(each) for each in _split(given.pop("port", ""))),
            scheme=_one_of("scheme", given.pop("scheme", None), SCHEMES),
            format=given.pop("format", None) or None,
            model=given.pop("model", None) or None,
            worker_type=_one_of("worker-type", given.pop("worker-type", None), WORKER_TYPES)
            or WORKER_TYPES[0],
            bootstrap_port=_integer("bootstrap-port", given.pop("bootstrap-port", None)),
            priority=_integer("priority", given.pop("priority", None)),
            vocab_size=_integer("vocab-size", given.pop("vocab-size", None)),
            held=_one_of("held", given.pop("held", None), ("true", "false")) == "true",
            labels=_labels(given.pop("labels", "")),
            card=_card(given.pop("card", None)),
            unknown=tuple(sorted(given)),
        )


def port_of(value: str) -> int | str | None:
    """Return the number of a port, or its name as Kubernetes allows it; None for any other text."""
    if value.isascii() and value.isdigit():
        return int(value) if len(value) <= 5 and 0 < int(value) < 65536 else None
    plain = value.replace("-", "")
    return value if len(value) <= 63 and plain.isascii() and plain.isalnum() else None


def _port(value: str) -> int | str:
    port = port_of(value)
    if port is None:
        raise _bad("port", value, "a port's number or name")
    return port


def _one_of(name: str, value: str | None, allowed: tuple[str, ...]) -> str | None:
    if not value:
        return None
    if value.lower() not in allowed:
        raise _bad(name, value, " or ".join(allowed))
    return value.lower()


def _integer(name: str, value: str | None) -> int | None:
    if not value:
        return None
    digits = value.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 9):
        raise _bad(name, value, "an integer")
    return int(value)


def _labels(value: str) -> Mapping[str, str]:
    labels = {}
    for each in _split(value):
        name, equals, content = each.partition("=")
        if not (name.strip() and equals):
            raise _bad("labels", each, "NAME=VALUE, several separated by commas")
        labels[name.strip()] = content.strip()
    return labels


def _card(value: str | None) -> CardValues:
    if not value:
        return NOTHING
    try:
        members = json.loads(value)
        if not isinstance(members, dict):
            raise ValueError("not an object")
        return read(members)
    except (ValueError, RecursionError) as error:
        raise _bad("card", value, f"a JSON object of a card: {str(error)[:60]}") from None


def _split(value: str) -> list[str]:
    return [part.strip() for part in value.split(",") if part.strip()]


def _bad(name: str, value: str, wanted: str) -> BadAnnotation:
    return BadAnnotation(f"{PREFIX}{name}: {value[:80]!r} is not {wanted}")
