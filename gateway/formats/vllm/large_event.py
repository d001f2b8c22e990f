"""Relaying an event of many MiB in steps.

Owns: what vLLM's stream reader does with an event, for one that is too large to be read at once. Must never
enter: how a long text is read (formats/large_event.py), what a chunk means (reader.py).
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import MappingProxyType

import msgspec

from gateway.errors import UpstreamMalformed
from gateway.formats import routing_data
from gateway.formats.contract import ReplyFacts
from gateway.formats.large_event import (
    OutputSteps,
    Shape,
    StreamRewriter,
    Summary,
    assemble,
    emit,
    find_data,
    summarize,
)
from gateway.formats.paths import PathCutter
from gateway.formats.sse import LargeEvent
from gateway.formats.vllm.ids import RequestIdMapper
from gateway.formats.vllm.reply import Choice, Chunk, any_object, error_status

_CHOICE: Shape = MappingProxyType(dict.fromkeys(Choice.__struct_fields__))
SHAPE: Shape = MappingProxyType({**dict.fromkeys(Chunk.__struct_fields__), "choices": _CHOICE})
_decode = msgspec.json.Decoder(Chunk).decode


def relay_large_event(  # noqa: PLR0913 - the reader's parts
    large: LargeEvent,
    facts: ReplyFacts,
    mapper: RequestIdMapper | None,
    note: Callable[[bytes, Chunk], bytes],
    feed: Callable[[bytes], bytes],
    *,
    passthrough: bool,
) -> OutputSteps:
    """Yield the event in pieces, then what ``feed`` returns for the bytes read after it.

    ``note`` records the facts of a chunk. Raises UpstreamMalformed.
    """
    event = yield from assemble(large)
    found: Summary | None = None
    through: list[StreamRewriter] = []
    try:
        found, through = yield from _noted(event, large, facts, note, passthrough=passthrough)
    except UpstreamMalformed:
        if not facts.terminal:
            raise
        # After the terminal event nothing can be malformed any more.
    if mapper is not None:
        through.append(mapper)
    yield from emit(event, () if found is None else found.cuts, through)
    if large.rest:
        yield feed(large.rest)


def _noted(
    event: bytes,
    large: LargeEvent,
    facts: ReplyFacts,
    note: Callable[[bytes, Chunk], bytes],
    *,
    passthrough: bool,
) -> Generator[None, None, tuple[Summary | None, list[StreamRewriter]]]:
    """Record the facts of the event. Return its summary and the rewriters it must pass. Raises
    UpstreamMalformed.
    """
    data = yield from find_data(event, lines=large.lines)
    if data is None:
        return None, []
    text, span = data
    found: Summary | None = None
    try:
        found = yield from summarize(text, span, SHAPE, cut=routing_data.NAME)
        chunk = _chunk(found.text)
    except msgspec.ValidationError as error:
        raise UpstreamMalformed("The worker sent JSON that is not an object", cause=error) from error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        # Python's json reads more: NaN, Infinity, unpaired surrogates.
        chunk = Chunk.of(any_object(text[slice(*span)]))
    except RecursionError as error:
        raise UpstreamMalformed("The worker sent something that is not JSON", cause=error) from error
    if found is not None and found.value is not None:
        routing_data.note(found.value, facts)
    note(b"", chunk)
    failed = chunk.error is not None and error_status(chunk.error) >= 500 and not passthrough
    return found if text is event else None, [PathCutter()] if failed else []


def _chunk(text: bytes) -> Chunk:
    try:
        return _decode(text)
    except msgspec.ValidationError:
        return Chunk.of(any_object(text))
