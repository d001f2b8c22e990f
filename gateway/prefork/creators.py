"""The creators of resources, known to all processes of the gateway.

Owns: telling the peers which worker created what, and receiving what they tell. Must never enter: what refers
to a resource. A process that starts later knows those of its own time only.
"""

from __future__ import annotations

import json
import time

from gateway.fleet.registry import Fleet
from gateway.prefork.frames import Verb
from gateway.prefork.peers import Peers, Reply
from gateway.proxy.resources import Resources


def send_creator(peers: Peers, id: str, url: str) -> None:
    """Tell all peers that the worker at ``url`` created ``id``, without waiting for them."""
    peers.report(Verb.CREATED, json.dumps([id, url]).encode())


class PeerCreators:
    """What the peers tell, for ``resources``."""

    def __init__(self, peers: Peers, resources: Resources, fleet: Fleet) -> None:
        self._resources = resources
        self._fleet = fleet
        peers.on_query(Verb.CREATED, self._on_created)

    def _on_created(self, body: bytes, reply: Reply) -> None:
        id, url = json.loads(body)
        if (worker := self._fleet.find(url)) is not None:
            self._resources.receive(id, worker, worker.incarnation, time.monotonic())
        reply(b"null")
