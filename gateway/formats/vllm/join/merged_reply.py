"""The joined reply: what a stream's events add up to, and its bytes at the end.

Owns: the order of the unary reply, the members that no event carries, the nulls that events leave out. Must
never enter: events, facts, what a rule does (merged_object.py), which key has which rule (rules.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from gateway.formats.vllm.ids import RequestIdMapper
from gateway.formats.vllm.join.merged_object import NULL, Members, MergedObject, Parts, members_of
from gateway.formats.vllm.join.merged_sample import MergedSample
from gateway.formats.vllm.join.rules import REPLY, SHARED_END, USAGE, WITH_NULLS, MergeRule


class MergedReply:
    """One joined reply. ``context`` has the members that come from the request, the worker and the reply's
    head.
    """

    __slots__ = ("_context", "_reply", "_usage", "samples")

    def __init__(self, context: Mapping[str, str | int | None]) -> None:
        self.samples: dict[int, MergedSample] = {}
        self._context = context
        self._reply = MergedObject(REPLY)
        self._usage: dict[str, bytes] = {}

    def add(self, members: Members) -> None:
        """Add the members of an event except its choices and its usage."""
        self._reply.add(members)

    def sample(self, index: int) -> MergedSample:
        sample = self.samples.get(index)
        if sample is None:
            sample = self.samples[index] = MergedSample()
        return sample

    def count(self, usage: Members, *, total: bool) -> None:
        """Add the usage of all samples, or of one sample, which counts for the prompt only."""
        for key, raw in usage.items():
            if (total or key.startswith("prompt_")) and (value := bytes(raw)) != NULL:
                self._usage[key] = value

    def body(self, prompt: int, tokens: int, mapper: RequestIdMapper | None) -> bytes:
        """Return the reply. ``prompt`` and ``tokens`` count where the engine has not reported usage."""
        head = b"".join(self._head(prompt, tokens))
        parts: Parts = [head if mapper is None else mapper.map(head), b'"choices":[']
        for position, index in enumerate(sorted(self.samples)):
            parts += (b"," if position else b"", *self.samples[index].parts())
        return b"".join((*parts, b"]}"))

    def _head(self, prompt: int, tokens: int) -> Iterator[bytes | bytearray]:
        """Yield all members but the choices, each with its comma."""
        yield b"{"
        values = {key: self._reply.take(key) for key in REPLY}
        values["usage"] = [self._total(prompt, tokens)]
        for key, rule in REPLY.items():
            if key == SHARED_END and (unknown := self._reply.members()):
                yield from (*unknown, b",")
            if rule is not MergeRule.PER_INDEX:
                yield from (b'"%b":' % key.encode(), *self._value(key, rule, values[key]), b",")

    def _value(self, key: str, rule: MergeRule, values: Parts) -> Parts:
        if rule is MergeRule.GIVEN and values == [NULL]:
            return [msgspec.json.encode(self._context[key])]
        if key == SHARED_END and values == [NULL]:
            return [b'"tokens"']
        return [_with_nulls(key, b"".join(values))] if key in WITH_NULLS else values

    def _total(self, prompt: int, tokens: int) -> bytes:
        """Return ``usage``: what the engine counted, completed by our own counts."""
        found = self._usage
        counted = {"prompt_tokens": prompt, "total_tokens": prompt + tokens, "completion_tokens": tokens}
        keys = [*USAGE, *(key for key in found if key not in USAGE)]
        return _object(
            (key, _with_nulls(key, found.get(key) or msgspec.json.encode(counted.get(key)))) for key in keys
        )


def _with_nulls(key: str, value: bytes) -> bytes:
    """Return ``value`` with the nulls that an event leaves out."""
    names = WITH_NULLS.get(key, ())
    if not names or not value.startswith(b"{"):
        return value
    found = members_of(value)
    return _object((name, bytes(found.get(name, NULL))) for name in dict.fromkeys((*names, *found)))


def _object(members: Iterable[tuple[str, bytes]]) -> bytes:
    return b"{%b}" % b",".join(b"%b:%b" % (msgspec.json.encode(key), value) for key, value in members)
