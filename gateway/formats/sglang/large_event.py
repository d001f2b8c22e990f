"""Relaying an event of many MiB in steps.

Owns: what SGLang's stream reader does with an event, for one that is too large to be read at once. Must never
enter: how a long text is read (formats/large_event.py), what a document means (tally.py).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from types import MappingProxyType

import msgspec

from gateway.errors import UpstreamMalformed
from gateway.formats import routing_data
from gateway.formats.id_mapping import IdMapping
from gateway.formats.json.windows import Span
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
from gateway.formats.sglang.error_paths import ErrorPathCutter
from gateway.formats.sglang.mode_conversion import Converter
from gateway.formats.sglang.reply import Document, Meta
from gateway.formats.sglang.tally import Tally, document_of
from gateway.formats.sse import LargeEvent

_META: Shape = MappingProxyType(dict.fromkeys(Meta.__struct_fields__))
SHAPE: Shape = MappingProxyType({**dict.fromkeys(Document.__struct_fields__), "meta_info": _META})


def relay_large_event(  # noqa: PLR0913 - the reader's parts
    large: LargeEvent,
    tally: Tally,
    path_cutter: ErrorPathCutter,
    convert: Converter | None,
    id_mapping: IdMapping | None,
    feed: Callable[[bytes], bytes],
) -> OutputSteps:
    """Yield the event in pieces, then what ``feed`` returns for the bytes read after it. Raises
    UpstreamMalformed.
    """
    ended = tally.facts.terminal
    event = yield from assemble(large)
    try:
        yield from _passed(event, large, tally, path_cutter, convert, id_mapping)
    except UpstreamMalformed:
        if not ended:
            raise
        # After the end of the generation nothing can be malformed any more.
    if large.rest:
        yield feed(large.rest)


def _passed(  # noqa: PLR0913 - the reader's parts
    event: bytes,
    large: LargeEvent,
    tally: Tally,
    path_cutter: ErrorPathCutter,
    convert: Converter | None,
    id_mapping: IdMapping | None,
) -> OutputSteps:
    data = yield from find_data(event, lines=large.lines)
    if data is None:
        yield from emit(event, (), ())
        return
    text, span = data
    found = yield from _found(text, span)
    if found.value is not None:
        routing_data.note(found.value, tally.facts)
    failure = tally.add(document_of(found.text))
    through: list[StreamRewriter] = []
    if failure is not None and (rewriter := path_cutter.rewriter(found.text, failure)) is not None:
        through.append(rewriter)
    cuts = found.cuts
    if convert is not None or (cuts and text is not event):
        # Both are done at once: this case is rare, and conversion needs all that the sample sent before.
        document = _without(text, span, cuts)
        event, cuts = b"data: %b\n\n" % document.replace(b"\n", b""), ()
        if convert is not None:
            event = convert.convert(event, document)
    if id_mapping is not None:
        through.append(id_mapping)
    yield from emit(event, cuts, through)


def _without(text: bytes, span: Span, cuts: Sequence[Span]) -> bytes:
    start, parts = span[0], []
    for left, right in cuts:
        parts.append(text[start:left])
        start = right
    return b"".join((*parts, text[start : span[1]]))


def _found(text: bytes, span: Span) -> Generator[None, None, Summary]:
    """Return the summary of the JSON object at ``span``: all of it if msgspec cannot read it, as Python's
    ``json`` reads more. Raises UpstreamMalformed.
    """
    try:
        return (yield from summarize(text, span, SHAPE, cut=routing_data.NAME))
    except msgspec.ValidationError as error:
        raise UpstreamMalformed("The worker sent a reply of an unknown shape.", cause=error) from error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Summary(text[slice(*span)], (), None)
    except RecursionError as error:
        raise UpstreamMalformed("The worker sent a reply that is not valid JSON.", cause=error) from error
