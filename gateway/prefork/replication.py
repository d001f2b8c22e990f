"""What one process was told of its workers, known to all of them.

Owns: telling the others what was said here, being told by them, and learning what was said before this
process was there. Must never enter: what a mark means, stores.
"""

from __future__ import annotations

import json
import logging

from gateway.fleet.cordons.replication import CordonReplication
from gateway.prefork.frames import Verb
from gateway.prefork.hub import ANSWER_TIMEOUTS
from gateway.prefork.peers import Peers, PeersUnavailable, Reply
from gateway.stores.versioned import Updates, updates_from_json

log = logging.getLogger(__name__)

#: How long the supervisor may take beyond what it waits for the others, in seconds.
_SLACK = 0.2


class WideMarks:
    """``sharing`` is this process's."""

    def __init__(self, peers: Peers, sharing: CordonReplication) -> None:
        self._peers = peers
        self._sharing = sharing
        sharing.to_processes = self._tell
        peers.on_question(Verb.CORDONS, self._heard)
        peers.on_question(Verb.ALL_CORDONS, self._asked)

    async def learn(self) -> None:
        """Take over what the others were told. Any of them knows all of it."""
        try:
            answers = await self._peers.ask(
                Verb.ALL_CORDONS, within=ANSWER_TIMEOUTS[Verb.ALL_CORDONS] + _SLACK
            )
        except PeersUnavailable as error:
            return log.warning("it is not known which workers are paused or held: %s", error)
        for edits in answers.bodies:
            self._sharing.heard(updates_from_json(edits))

    async def _tell(self, edits: Updates) -> None:
        try:
            answers = await self._peers.ask(
                Verb.CORDONS, json.dumps(edits).encode(), ANSWER_TIMEOUTS[Verb.CORDONS] + _SLACK
            )
        except PeersUnavailable as error:
            return log.warning("the other processes may not know who is paused or held: %s", error)
        if answers.missing:
            log.warning("%d processes do not know yet who is paused or held", answers.missing)

    def _heard(self, question: bytes, reply: Reply) -> None:
        self._sharing.heard(updates_from_json(json.loads(question)))
        reply(b"null")

    def _asked(self, question: bytes, reply: Reply) -> None:
        reply(json.dumps(self._sharing.marks.all).encode())
