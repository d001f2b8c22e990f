"""``tito-gateway workers show``: the card of one worker as a table.

Owns: that table. Must never enter: what a card has, the call to the gateway.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import quote

import typer

from gateway.commands.check import table
from gateway.commands.workers import DEFAULT_URL, Key, Named, Url, call_gateway, path_of, stop


def show(
    worker: Named,
    url: Url = DEFAULT_URL,
    admin_api_key: Key = None,
    model: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The card of this model of the worker.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the JSON of the gateway on one line.")
    ] = False,
) -> None:
    """Show the card of a worker."""
    query = "" if model is None else f"?model={quote(model, safe='')}"
    found = call_gateway(url, admin_api_key, "GET", f"{path_of(worker)}/card{query}")
    typer.echo(json.dumps(found) if as_json else _card(found))


def _card(found: Mapping[str, Any]) -> str:
    card, sources = found.get("card"), found.get("sources")
    if not isinstance(card, dict) or not isinstance(sources, dict):
        raise stop("the reply has no card: this gateway is too old, or no gateway")
    free = card.get("runtime_data", {})
    members = {**{name: value for name, value in card.items() if name in sources}, **free}
    conflicts = found.get("conflicts") or ()
    rows = [
        (
            name,
            value if isinstance(value, str) else json.dumps(value),
            # The names of capabilities are the keys of the map.
            str(sources.get(name) or sources.get("capabilities" if value is True else "runtime_data") or "-"),
            "other workers of the model differ" if name in conflicts else "",
        )
        for name, value in members.items()
        if name != "runtime_data"
    ]
    return table([("MEMBER", "VALUE", "SOURCE", ""), *rows])
