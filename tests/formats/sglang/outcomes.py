"""What became of every recorded exchange with SGLang.

There is no Ending where one was ``refused`` by the gateway before the engine saw it, ``unanswered`` as the
engine died or the client left before a status, or of ``another method`` than the route has. On a route of no
format here it is that of the opaque reader.
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
