"""Cordons of one process, known to all processes of the gateway.

Owns: sending cordons to the peers, receiving theirs, and fetching those that are older than this process.
Must never enter: what a cordon means, stores."""

from __future__ import annotations

import json
import logging

from gateway.fleet.cordons import Cordons
from gateway.fleet.members import FleetMembership
from gateway.prefork.frames import Verb
from gateway.prefork.hub import ANSWER_TIMEOUTS
from gateway.prefork.peers import Peers, PeersUnavailable, Reply
from gateway.stores.last_writer_wins.map import Updates, from_rows, to_rows

log = logging.getLogger(__name__)

#: How long the supervisor may take beyond what it waits for the peers, in seconds.
_SLACK = 0.2


async def send_cordons(peers: Peers, updates: Updates) -> None:
    """Return once all peers have merged ``updates``, or did not answer in time, which is logged."""
    try:
        within = ANSWER_TIMEOUTS[Verb.CORDONS] + _SLACK
        answers = await peers.ask(Verb.CORDONS, json.dumps(to_rows(updates)).encode(), within)
    except PeersUnavailable as error:
        return log.warning("the other processes may not know which workers are cordoned: %s", error)
    if answers.missing:
        log.warning("%d processes do not know yet which workers are cordoned", answers.missing)


class PeerCordons:
    """What the peers send of cordons, merged into ``cordons``, and the answers to what they ask."""

    def __init__(self, peers: Peers, cordons: Cordons, members: FleetMembership) -> None:
        self._peers = peers
        self._cordons = cordons
        self._members = members
        peers.on_query(Verb.CORDONS, self._on_updates)
        peers.on_query(Verb.ALL_CORDONS, self._on_query)

    async def fetch(self) -> None:
        """Merge what the peers know. Any of them knows all of it."""
        try:
            answers = await self._peers.ask(
                Verb.ALL_CORDONS, within=ANSWER_TIMEOUTS[Verb.ALL_CORDONS] + _SLACK
            )
        except PeersUnavailable as error:
            return log.warning("it is not known which workers are cordoned: %s", error)
        for body in answers.bodies:
            self._receive(from_rows(body))

    def _on_updates(self, body: bytes, reply: Reply) -> None:
        self._receive(from_rows(json.loads(body)))
        reply(b"null")

    def _on_query(self, body: bytes, reply: Reply) -> None:
        reply(json.dumps(to_rows(self._cordons.entries)).encode())

    def _receive(self, updates: Updates) -> None:
        for url in self._cordons.receive(updates):
            self._members.dismiss(url)
