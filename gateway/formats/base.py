"""The base class of every format: the contract, with a default for each optional member.

Owns: the defaults. Must never enter: a dialect, I/O, a clock, a third-party package.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

from gateway.cards.values import NOTHING, CardValues
from gateway.errors import InvalidRequest
from gateway.formats.contract import Format, Ids, R, UpstreamRequest, WorkerView
from gateway.formats.optional import (
    AbortTarget,
    LoadAlternative,
    RelayedRequest,
    WorkerHealth,
    WorkerLoad,
    health_by_status,
)
from gateway.formats.routes import Routes
from gateway.formats.worker_contract import ProbeReply, ProbeRequest, WorkerContract


class BaseFormat(Format[R], WorkerContract):
    """A format with no optional member of its own.

    A plugin derives from it and defines the members of ``Format`` (gateway.formats.contract) and of
    ``WorkerContract`` (gateway.formats.worker_contract).
    """

    #: The endpoint, abort routes, control calls and relayed routes of the dialect.
    routes: Routes = Routes()
    #: Settings of the gateway that are options of this format: field name to the name for ``configured``.
    settings: Mapping[str, str] = MappingProxyType({})
    #: The setting of the gateway that switches the endpoints of this format on and off; None: there is none.
    enabled_by: str | None = None
    #: What the card of a worker says where neither its registration nor the worker itself says it.
    card_defaults: CardValues = NOTHING
    #: Like ``probes``, but sent only to a worker that ``identify`` has recognised, which is then called again
    #: with their answers, too: requests that are not harmless everywhere.
    details: Sequence[ProbeRequest] = ()
    #: Cheap requests for a worker's load; the first that is answered is used from then on.
    loads: Sequence[ProbeRequest] = ()
    #: Where engines serve metrics for Prometheus.
    metrics: str = "/metrics"

    def configured(self, options: Mapping[str, str]) -> BaseFormat[R]:
        """Return this format with its own options, by name.

        Raises ValueError, whose message names the option at fault.
        """
        if options:
            raise ValueError(f"{next(iter(options))}: this format has no such setting")
        return self

    def check_vocabulary(self, request: R, size: int) -> Generator[None, None, None] | None:
        """Refuse what a model with ``size`` tokens does not have. Raises InvalidRequest.

        For a large request, return steps of a few milliseconds that do so.
        """
        return None

    def read_health(self, reply: ProbeReply) -> WorkerHealth:
        """Read the answer to ``health``."""
        return health_by_status(reply)

    def read_load(self, probe_request: ProbeRequest, reply: ProbeReply) -> WorkerLoad | None:
        """Read the answer to one of ``loads``; None if it does not tell the load."""
        return None

    def load_alternative(self, target: bytes) -> LoadAlternative | None:
        """Return where an engine without ``target``, a path and its query, reports the same load."""
        return None

    def aborted_ids(self, body: bytes) -> AbortTarget:
        """Read the body of a client's abort call. Raises InvalidRequest."""
        raise InvalidRequest("this endpoint has no abort call; close the connection")

    def abort_relayed(
        self, worker: WorkerView, path: str, request: RelayedRequest, ids: Ids
    ) -> Sequence[UpstreamRequest]:
        """Do what ``abort`` does, for a request of the relayed route at ``path``."""
        return ()

    def openapi(self) -> Mapping[str, Any]:
        """Return the OpenAPI operation of the endpoint: summary, schemas of request and reply, examples."""
        return {
            "summary": f"Generate ({self.name})",
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": {"type": "object"}}},
            },
            "responses": {"200": {"description": "The reply of the engine"}},
        }


AnyFormat: TypeAlias = BaseFormat[Any]
