"""The outcomes of the recorded exchanges with SGLang.

There is no Ending if the gateway ``refused`` the request, if it was ``unanswered`` because the engine crashed
or the client disconnected before a status, or if it had ``another method`` than the route. On a route of no
format here it is that of the passthrough reader.
"""

from __future__ import annotations

from tests.formats.outcomes import rows

OUTCOMES = {row.name: row for row in rows("sglang")}
#: Recorded bodies that the gateway refuses itself; the engine refused them too, answered 500, or died.
REFUSED = {name for name, row in OUTCOMES.items() if row.outcome == "refused"}
#: Replies with a 200 of the generate route that a client of the gateway can get.
SUCCEEDED = sorted(
    name
    for name, row in OUTCOMES.items()
    if (row.path, row.status) == ("/generate", "200") and name not in REFUSED
)
