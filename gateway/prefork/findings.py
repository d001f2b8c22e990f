"""Findings of the guard against queries of death, known to all processes of the gateway.

Owns: sending findings to the peers, receiving theirs, and fetching those that are older than this process.
Must never enter: what a finding means.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence

from gateway.prefork.frames import Verb
from gateway.prefork.hub import ANSWER_TIMEOUTS
from gateway.prefork.peers import Peers, PeersUnavailable, Reply
from gateway.proxy.query_of_death import Finding, QueryOfDeathGuard

log = logging.getLogger(__name__)

#: How long the supervisor may take beyond what it waits for the peers, in seconds.
_SLACK = 0.2


def send_findings(peers: Peers, findings: Sequence[Finding]) -> None:
    """Send ``findings`` to all peers, without waiting for them."""
    peers.report(Verb.FINDINGS, _encode(findings))


class PeerFindings:
    """What the peers find, taken in by ``guard``, and the answers to what they ask."""

    def __init__(self, peers: Peers, guard: QueryOfDeathGuard) -> None:
        self._peers = peers
        self._guard = guard
        peers.on_query(Verb.FINDINGS, self._on_findings)
        peers.on_query(Verb.ALL_FINDINGS, self._on_query)

    async def fetch(self) -> None:
        """Take in what the peers know."""
        within = ANSWER_TIMEOUTS[Verb.ALL_FINDINGS] + _SLACK
        try:
            answers = await self._peers.ask(Verb.ALL_FINDINGS, within=within)
        except PeersUnavailable as error:
            return log.warning("it is not known which requests killed workers: %s", error)
        self._receive([row for body in answers.bodies for row in body])

    def _on_findings(self, body: bytes, reply: Reply) -> None:
        self._receive(json.loads(body))
        reply(b"null")

    def _on_query(self, body: bytes, reply: Reply) -> None:
        reply(_encode(self._guard.findings(time.monotonic())))

    def _receive(self, rows: Sequence[tuple[str, str | None, float]]) -> None:
        # The clock is that of the host, so that times of other processes can be compared.
        findings = [Finding(bytes.fromhex(body), died, at) for body, died, at in rows]
        self._guard.receive(findings, time.monotonic())


def _encode(findings: Sequence[Finding]) -> bytes:
    return json.dumps([(each.body.hex(), each.died, each.at) for each in findings]).encode()
