"""``tito-gateway workers``: commands to list and change the fleet of a running gateway.

Owns: the commands, the table, and keeping a record in a store. Must never enter: what the
gateway does for a call. Exit codes: 0 success, 1 failure, 2 wrong usage.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import quote

import typer

from gateway.cards.members import NAMES
from gateway.commands.check import table
from gateway.commands.flags import SettingsCommand
from gateway.fleet.registration import RoleNotServed, check_role
from gateway.settings import Cards, SettingsError, environment, load_section, load_settings
from gateway.stores.base import Store, StoreUnavailable
from gateway.stores.record import WorkerRecord
from gateway.wiring.stores import STORES

EXIT_FAILED, EXIT_USAGE = 1, 2
#: Seconds: the interval of --watch, the TTL of a record in a store.
WATCH_INTERVAL, TTL = 1.0, 10.0
KEY_VARIABLE = "DYN_ADMIN_API_KEY"
#: Stores in which a record can have a TTL.
TTL_STORES = ("file", "etcd")

HEADINGS = ("URL", "STATE", "LOAD", "REPORTED", "MODEL", "ENGINE", "VERSION", "WEIGHTS", "ID", "REASON")
#: Members that every entry of the list of workers has.
_REQUIRED = frozenset({"url", "state", "load"})
_CLEAR = "\x1b[H\x1b[2J"

Url = Annotated[str, typer.Option("--url", metavar="URL", help="URL of the gateway.")]
Key = Annotated[
    str | None,
    typer.Option(
        "--admin-api-key", metavar="KEY", help=f"Key for the control routes; prefer {KEY_VARIABLE}."
    ),
]
Named = Annotated[str, typer.Argument(metavar="WORKER", help="The worker's URL or id.")]
DEFAULT_URL = "http://127.0.0.1:8000"

workers = typer.Typer(
    help="List and change the workers of a running gateway.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def stop(message: str, code: int = EXIT_FAILED) -> typer.Exit:
    """Print ``message`` as one line and return the exit to raise."""
    typer.echo(f"tito-gateway workers: {message}", err=True)
    return typer.Exit(code)


def call_gateway(url: str, key: str | None, method: str, path: str, body: Any = None) -> Mapping[str, Any]:
    """Return the JSON object of the reply. Print one line and raise typer.Exit on failure."""
    # The HTTP client is slow to import, and the other commands, `serve` above all, do without it.
    from gateway.commands.workers_api import CallFailed, call  # noqa: PLC0415

    try:
        return call(url, key or environment.variables().get(KEY_VARIABLE), method, path, body)
    except CallFailed as error:
        raise stop(str(error)) from None


@workers.command("list")
def list_workers(
    url: Url = DEFAULT_URL,
    admin_api_key: Key = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the JSON of the gateway on one line.")
    ] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Repeat every second, until interrupted.")] = False,
) -> None:
    """List all workers with their state and load."""
    try:
        while True:
            found = call_gateway(url, admin_api_key, "GET", "/workers")
            shown = json.dumps(found) if as_json else _table(found)
            clear = _CLEAR if watch and not as_json else ""
            typer.echo(clear + shown)
            if not watch:
                return
            time.sleep(WATCH_INTERVAL)
    except KeyboardInterrupt:
        return


@workers.command(cls=SettingsCommand)
def add(  # noqa: PLR0913 - each parameter is a flag
    worker: Annotated[
        str, typer.Argument(metavar="URL", help="The worker's URL, as the gateway reaches it.")
    ],
    url: Url = DEFAULT_URL,
    admin_api_key: Key = None,
    format: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The format it speaks; otherwise it is probed.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Its model, if it does not report one.")
    ] = None,
    worker_type: Annotated[
        str,
        typer.Option(metavar="regular|prefill|decode|encode", help="Its role; only regular can be served."),
    ] = "regular",
    bootstrap_port: Annotated[int | None, typer.Option(metavar="PORT", help="Stored and shown.")] = None,
    priority: Annotated[int | None, typer.Option(metavar="INTEGER", help="Stored and shown.")] = None,
    vocab_size: Annotated[
        int | None,
        typer.Option(metavar="INTEGER", help="Number of tokens of its model; others are refused."),
    ] = None,
    card: Annotated[
        str | None,
        typer.Option(metavar="JSON", help="An object with members of its card; they count first."),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="A label, stored and shown; repeatable.")
    ] = None,
    dyn_structural_tag: Annotated[
        str | None,
        typer.Option(
            metavar="[POLICY]",
            help="Whether its engine compiles grammars for tool calls: true (also without a value), false or "
            "a JSON object; otherwise the default of its format. [DYN_STRUCTURAL_TAG]",
        ),
    ] = None,
    cordoned: Annotated[
        bool,
        typer.Option(
            "--cordoned",
            "--held",
            help="It gets no requests until it is uncordoned. [older name: --held]",
        ),
    ] = False,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Keep it in the store of DYN_DISCOVERY_BACKEND while this command runs."),
    ] = False,
) -> None:
    """Register a worker, or replace its record."""
    members = {
        **_structural_tag(dyn_structural_tag),
        **_object(card),
        "url": worker,
        "format": format,
        "model": model,
        "worker_type": worker_type,
        "bootstrap_port": bootstrap_port,
        "priority": priority,
        "labels": _labels(label or ()),
        "cordoned": cordoned,
    }
    if vocab_size is not None:
        members["vocab_size"] = vocab_size
    record = _record(members)
    if keep:
        return _keep(record)
    _print_accepted(call_gateway(url, admin_api_key, "POST", "/workers", json.loads(record.to_json())))


@workers.command()
def remove(worker: Named, url: Url = DEFAULT_URL, admin_api_key: Key = None) -> None:
    """Drain a worker: no new requests; it leaves once none runs."""
    _print_accepted(call_gateway(url, admin_api_key, "DELETE", path_of(worker)))


@workers.command()
def drain(worker: Named, url: Url = DEFAULT_URL, admin_api_key: Key = None) -> None:
    """Another name of remove."""
    _print_accepted(call_gateway(url, admin_api_key, "POST", f"{path_of(worker)}/drain"))


@workers.command("hold", help="An older name of cordon.")
@workers.command()
def cordon(worker: Named, url: Url = DEFAULT_URL, admin_api_key: Key = None) -> None:
    """Give a worker no new requests until it is uncordoned."""
    _print_accepted(call_gateway(url, admin_api_key, "POST", f"{path_of(worker)}/cordon"))


@workers.command("open", help="An older name of uncordon.")
@workers.command()
def uncordon(worker: Named, url: Url = DEFAULT_URL, admin_api_key: Key = None) -> None:
    """End every cordon of a worker."""
    _print_accepted(call_gateway(url, admin_api_key, "POST", f"{path_of(worker)}/uncordon"))


def path_of(worker: str) -> str:
    """Return the path of a worker, given by its URL or id."""
    return f"/workers/{quote(worker, safe='')}"


def _print_accepted(reply: Mapping[str, Any]) -> None:
    typer.echo(f"{reply.get('message')}: {reply.get('url')} {reply.get('worker_id')}")


def _record(members: Mapping[str, Any]) -> WorkerRecord:
    """Return a record that a gateway accepts. Print one line and raise typer.Exit if ``members`` are none."""
    try:
        record = WorkerRecord.of(members)
        check_role(record)
    except (ValueError, RoleNotServed) as error:
        raise stop(str(error), EXIT_USAGE) from None
    return record


def _structural_tag(text: str | None) -> Mapping[str, Any]:
    """Return the members of --dyn-structural-tag."""
    try:
        policy = load_section(Cards, {"dyn_structural_tag": text}).dyn_structural_tag
    except SettingsError as error:
        raise stop(str(error), EXIT_USAGE) from None
    return {} if policy is None else policy.members()


def _object(text: str | None) -> dict[str, Any]:
    """Return the object of --card."""
    try:
        found = {} if text is None else json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise stop("--card must be a JSON object", EXIT_USAGE)
    if unknown := sorted(found.keys() - NAMES):
        raise stop(f"--card: {unknown[0][:80]} is no member of a card", EXIT_USAGE)
    return found


def _labels(pairs: Sequence[str]) -> dict[str, str]:
    split = [pair.partition("=") for pair in pairs]
    for name, sign, _ in split:
        if not (name and sign):
            raise stop(f"a label has the form NAME=VALUE, not {name!r}", EXIT_USAGE)
    return {name: value for name, _, value in split}


def _table(found: Mapping[str, Any]) -> str:
    workers = found.get("workers")
    if not isinstance(workers, list) or not all(map(_is_worker, workers)):
        raise stop("the reply has no list of workers: this is no gateway")
    return table([HEADINGS, *map(_row, workers)])


def _is_worker(entry: object) -> bool:
    return isinstance(entry, dict) and _REQUIRED <= entry.keys()


def _row(worker: Mapping[str, Any]) -> tuple[str, ...]:
    load = worker.get("reported_load")
    reported = f"{load.get('running')}+{load.get('waiting')}" if isinstance(load, dict) else None
    values = (
        worker["url"],
        worker["state"],
        worker["load"],
        reported,
        *(worker.get(name) for name in ("model_id", "engine", "version", "weight_version", "id", "reason")),
    )
    return tuple("-" if value in (None, "") else str(value) for value in values)


def _keep(record: WorkerRecord) -> None:
    try:
        settings = load_settings()
    except SettingsError as error:
        raise stop(str(error), EXIT_USAGE) from None
    if settings.discovery_backend not in TTL_STORES:
        named = " or ".join(TTL_STORES)
        raise stop(
            f"--keep needs DYN_DISCOVERY_BACKEND {named}, not {settings.discovery_backend}", EXIT_USAGE
        )
    try:
        asyncio.run(_keep_record(STORES[settings.discovery_backend](settings), record))
    except StoreUnavailable as error:
        raise stop(str(error)) from None


async def _keep_record(store: Store, record: WorkerRecord) -> None:
    """Renew the record until a signal ends this process, then delete it."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    try:
        await store.put(record, ttl=TTL)
        typer.echo(f"keeping {record.url} until interrupted")
        await ended.wait()
        await store.delete(record.url)
    finally:
        await store.close()
