"""Phase 7 of an exchange: from the worker's connection through the reader of its reply to the client.

Owns: the loop that runs for every read. Must never enter: a dialect, HTTP framing, the end of a reply.
"""

from __future__ import annotations

from gateway.proxy.attempt import Attempt
from gateway.proxy.live import LiveExchange


async def feed(live: LiveExchange) -> bytes:  # noqa: C901 - runs for every read; a call would cost
    """Pass on the reply as it arrives; if configured, send a comment whenever a stream is silent.

    Return the output of the last read: it is sent together with the reply's end, as each write is costly.
    """
    client, record, attempt, deadlines = live.client, live.record, live.attempt, live.deadlines
    assert attempt is not None, "a reply needs an attempt"
    connection, reader = attempt.connection, attempt.reader
    facts, inspect, unflushed = reader.facts, reader.feed, reader.streaming
    # No comment into a body that was not inspected: it may be compressed.
    commented = unflushed and not reader.identity
    interval = live.services.sse_comment_interval if commented else None
    while True:
        while not connection.ready:
            if unflushed:
                unflushed = False
                await client.flush()
                continue
            if deadlines is not None:
                deadlines.awaiting_body()
            if interval is None:
                await connection.changed
            elif await connection.stays_silent(interval):
                # Without an empty line, which some decoders take for an empty event.
                await client.send(b":\n")
        data = connection.take()
        if deadlines is not None:
            deadlines.body_received()
        if not data:
            return b""
        out = inspect(data)
        if facts.tokens != record.tokens:
            live.update_tokens(facts.tokens)
        if facts.created is not None:
            live.note_created(attempt)
        if out:
            if connection.exhausted:
                return out
            if not record.committed:
                _commit_late(live, attempt)
            record.reply_bytes += len(out)
            await client.send(out)
        elif facts.steps is not None:
            await _run_steps(live)


async def _run_steps(live: LiveExchange) -> None:
    """Run the steps that a read left, in time slices, and pass on their output."""
    record, attempt = live.record, live.attempt
    assert attempt is not None, "a reply needs an attempt"
    facts = attempt.reader.facts
    steps, facts.steps = facts.steps, None
    assert steps is not None, "only called for a reader that left steps"
    while (out := await live.services.time_slices.run_step(steps)) is not None:
        live.update_tokens(facts.tokens)
        if out:
            if not record.committed:
                _commit_late(live, attempt)
            record.reply_bytes += len(out)
            await live.client.send(out)


def _commit_late(live: LiveExchange, attempt: Attempt) -> None:
    """Commit a reply, with the worker's Content-Length if its bytes are passed on unchanged."""
    lines = attempt.reply_headers
    if attempt.reader.identity:
        lines = lines + [line for line in attempt.head.headers if line[0] == b"content-length"]
    live.commit(attempt.head.status, lines)
