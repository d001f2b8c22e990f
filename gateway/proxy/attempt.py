"""One dispatch of an exchange to one worker.

Owns: the lease, the connection and the reader of one attempt, and giving them back. Must never enter: the
client, the choice of a worker, a dialect.
"""

from __future__ import annotations

import time

from gateway.errors import GatewayError, UpstreamIncomplete, UpstreamMalformed, UpstreamTimeout
from gateway.fleet.registry import Fleet
from gateway.fleet.replies import GOOD, ReplyOutcome
from gateway.fleet.worker import Worker
from gateway.formats.contract import Reader, ReplyFacts, ReplyHead
from gateway.proxy.deadlines import TOTAL
from gateway.upstream.connection import Connection

#: Statuses by which an engine reports that it accepts no more requests at the moment.
BUSY_STATUSES = frozenset({429, 503})


class NoReply:
    """The reader of a reply whose head has not arrived."""

    streaming = False
    identity = False

    def __init__(self) -> None:
        self.facts = ReplyFacts()

    def feed(self, data: bytes) -> bytes:
        return data

    def finish(self) -> bytes:
        return b""

    def fail(self, error: GatewayError) -> bytes:
        return b""


NO_HEAD = ReplyHead(0, [])
NO_REPLY: Reader = NoReply()


class Attempt:
    """One dispatch of an exchange to one worker, from the moment the request is sent until ``close``.

    An exchange has one attempt at a time, and a next one only after ``close`` of the one before. ``head`` and
    ``reader`` are those of the worker's reply, NO_HEAD and NO_REPLY until its head has arrived;
    ``reply_headers`` are the headers the client is given for it. ``incarnation`` distinguishes the
    process that was sent the request from a later one at the same URL.
    """

    def __init__(self, worker: Worker, incarnation: object, connection: Connection) -> None:
        self.worker = worker
        self.incarnation = incarnation
        self.connection = connection
        self.sent_at = time.monotonic()
        self.head = NO_HEAD
        self.reader = NO_REPLY
        self.reply_headers: list[tuple[bytes, bytes]] = []
        #: False: the connection must not carry another request, although the reply is complete.
        self.reusable = True

    def close(self, fleet: Fleet, error: GatewayError | None) -> None:
        """Give back the lease and the connection. ``error`` is what ended it; None: a complete reply."""
        if error is None and self.reusable:
            self.worker.pool.give_back(self.connection)
        else:
            self.connection.close()
        fleet.release(self.worker)

    def outcome(self, error: GatewayError | None, *, relayed: bool) -> ReplyOutcome:
        """Return what it says about the worker. ``error`` is what ended it; None: a complete reply.

        ``relayed``: its route is a relayed one, which not every engine has, so that a 404 is no failure.
        """
        if error is not None:
            if isinstance(error, UpstreamIncomplete | UpstreamMalformed):
                return ReplyOutcome.BROKEN
            silent = isinstance(error, UpstreamTimeout) and error.limit != TOTAL
            return ReplyOutcome.FAILED if silent else ReplyOutcome.UNKNOWN
        facts = self.reader.facts
        status = facts.error_status or self.head.status
        if status < 400:
            return ReplyOutcome.FAILED if facts.foreign else GOOD
        if status in BUSY_STATUSES:
            return ReplyOutcome.UNKNOWN
        failed = status >= 500 or status in (401, 403) or (status == 404 and not relayed)
        return ReplyOutcome.FAILED if failed else ReplyOutcome.REFUSED
