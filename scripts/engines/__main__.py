"""The commands. Exit status: 0 done, 1 a server did not start, 2 usage, 3 an engine cannot be installed."""

from __future__ import annotations

import argparse
import sys
import time

from scripts.engines import install, servers

NOT_TO_BE_HAD = 3


def main() -> int:
    arguments = _parser().parse_args()
    match arguments.command:
        case "install":
            return _install(arguments.engines or list(install.ENGINES))
        case "start":
            return _start(arguments.kind, arguments.port)
        case "stop":
            return _stop(arguments.kinds)
        case _:
            return _list()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scripts.engines", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("install", help="install engines (all of them if none is named)")
    command.add_argument("engines", nargs="*", choices=[*install.ENGINES, []])
    command = commands.add_parser("start", help="start a server, wait until it serves, leave it running")
    command.add_argument("kind", choices=servers.KINDS)
    command.add_argument("--port", type=int)
    command = commands.add_parser("stop", help="stop servers (all of them if none is named)")
    command.add_argument("kinds", nargs="*", choices=[*servers.KINDS, []])
    commands.add_parser("list", help="what runs, and where")
    return parser


def _install(engines: list[str]) -> int:
    missing = 0
    for engine in engines:
        began = time.monotonic()
        try:
            install.install(engine)
        except install.CannotInstall as reason:
            missing += 1
            _shout(f"{engine} CANNOT BE INSTALLED HERE, ITS TESTS WILL NOT RUN", str(reason))
        else:
            print(f"{engine} is installed ({time.monotonic() - began:.0f} s)", flush=True)
    return NOT_TO_BE_HAD if missing else 0


def _start(kind: str, port: int | None) -> int:
    began = time.monotonic()
    server = servers.start(kind, port)
    try:
        servers.wait_ready(server)
    except servers.StartFailed as reason:
        _shout(f"{kind} DID NOT START", str(reason))
        return 1
    print(f"{kind} serves on {server.url} after {time.monotonic() - began:.0f} s; log: {server.log}")
    return 0


def _stop(kinds: list[str]) -> int:
    for server in servers.running():
        if server.name in (kinds or servers.KINDS):
            server.stop()
            print(f"{server.name} is stopped")
    return 0


def _list() -> int:
    for server in servers.running():
        print(f"{server.name}\t{server.url}\tpid {server.pid}\t{server.log}")
    return 0


def _shout(headline: str, details: str) -> None:
    print("!" * 100, headline, details, "!" * 100, sep="\n", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
