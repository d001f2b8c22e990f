"""The commands of ``tito-gateway``.

Owns: flags, exit codes and the error line that a user sees. Must never enter: what a command does. Exit
codes: 0 success, 1 failure, 2 wrong usage.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from gateway import sim
from gateway.catalog import CatalogError
from gateway.commands.check import check
from gateway.commands.demo import DemoFailed, run_demo
from gateway.commands.flags import (
    END_WITH_STDIN,
    SectionedCommand,
    SettingsCommand,
    Values,
    command,
    dataclass_flags,
    setting_flags,
)
from gateway.commands.worker_card import show
from gateway.commands.workers import EXIT_FAILED, EXIT_USAGE, workers
from gateway.formats.registry import FormatError
from gateway.process import server
from gateway.process.open_files import TooFewFiles
from gateway.process.server import STANDARD_ERROR, STANDARD_OUTPUT
from gateway.settings import (
    Cards,
    Settings,
    SettingsError,
    flag_of,
    ignored_variables,
    load_section,
    load_settings,
    variable_of,
)
from gateway.sim.config import SimConfig
from gateway.sim.dialects import DIALECTS
from gateway.version import COMPILED, VERSION

#: Settings of the command that probes workers.
_PROBE_SETTINGS = (
    "worker",
    "worker_api_key",
    "worker_ca_file",
    "worker_client_cert",
    "worker_client_key",
    "worker_tls_insecure",
)

#: Seconds between the signals that end a process after its standard input was closed: first for running
#: requests to end, then for them to be cut.
_END_GRACE, _CUT_GRACE = 3.0, 3.0

app = typer.Typer(
    help="An HTTP gateway in front of fleets of LLM engines: token ids in, token ids out.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
simulators = typer.Typer(help="Run one simulated engine.", no_args_is_help=True, rich_markup_mode=None)


def main() -> None:
    """Run ``tito-gateway``."""
    _open_standard_files()
    app()


def _open_standard_files() -> None:
    """Open the null device for each standard file that is closed.

    Otherwise a file or socket opened later would get its number, and the log would be written to it.
    """
    number = os.open(os.devnull, os.O_RDWR)
    while number <= STANDARD_ERROR:
        os.set_inheritable(number, True)
        number = os.open(os.devnull, os.O_RDWR)
    os.close(number)
    sys.stdout = sys.stdout or open(STANDARD_OUTPUT, "w", closefd=False)
    sys.stderr = sys.stderr or open(STANDARD_ERROR, "w", closefd=False)


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Report errors that a user can correct in one line, without a traceback."""
    try:
        yield
    except (SettingsError, CatalogError, FormatError, server.ProcessesImpossible) as error:
        raise _exit_with(str(error), EXIT_USAGE) from None
    except (server.PortTaken, TooFewFiles, DemoFailed) as error:
        raise _exit_with(str(error), EXIT_FAILED) from None


def _exit_with(message: str, code: int) -> typer.Exit:
    typer.echo(f"tito-gateway: {message}", err=True)
    return typer.Exit(code)


def _serve(values: Values) -> None:
    if values.pop("end_with_stdin"):
        end_with_stdin()
    with one_line_errors():
        settings = load_settings(values)
        if (ignored := ignored_variables()) is not None:
            typer.echo(f"tito-gateway: {ignored}", err=True)
        raise typer.Exit(server.run(settings))


def _check(values: Values) -> None:
    with one_line_errors():
        settings = load_settings(values)
        if not settings.worker:
            variable = variable_of(Settings.model_fields["worker"])
            raise SettingsError(f"give a worker with {flag_of('worker')} or {variable}")
        shown, usable = check(settings)
    typer.echo(shown)
    raise typer.Exit(0 if usable else EXIT_FAILED)


def _simulate(kind: str) -> Callable[[Values], None]:
    def run(values: Values) -> None:
        if values.pop("end_with_stdin"):
            end_with_stdin()
        tag = values.pop("dyn_structural_tag")
        with one_line_errors():
            values["dyn_structural_tag"] = load_section(Cards, {"dyn_structural_tag": tag}).dyn_structural_tag
        values = {name: value for name, value in values.items() if value is not None}
        try:
            code = sim.main(kind, SimConfig(**values))
        except ValueError as error:
            raise _exit_with(str(error), EXIT_USAGE) from None
        except OSError as error:
            raise _exit_with(f"cannot listen: {error.strerror or error}", EXIT_FAILED) from None
        raise typer.Exit(code)

    return run


_SERVE_HELP = """Run the gateway.

Each flag can also be set by the environment variable in brackets; the flag overrides it. DYN_ stands for
NVIDIA Dynamo, because settings that its frontend also has keep its names.
"""

app.command("serve", cls=SectionedCommand)(command(_serve, [*setting_flags(), END_WITH_STDIN], _SERVE_HELP))
app.command("check", cls=SectionedCommand)(
    command(
        _check,
        setting_flags(_PROBE_SETTINGS),
        "Probe workers and print what they are.",
    )
)
app.add_typer(simulators, name="sim")
workers.command()(show)
app.add_typer(workers, name="workers")
for _kind in DIALECTS:
    simulators.command(_kind, cls=SettingsCommand)(
        command(
            _simulate(_kind), [*dataclass_flags(SimConfig), END_WITH_STDIN], f"Simulate a {_kind} server."
        )
    )


@app.command()
def demo(
    port: Annotated[int, typer.Option(metavar="PORT", help="Port of the gateway.", min=1, max=65535)] = 8000,
    once: Annotated[bool, typer.Option("--once", help="End after the two requests.")] = False,
) -> None:
    """Try the gateway with simulated engines.

    Start the gateway in front of four simulated engines, show a unary request and a stream, and run until
    Ctrl-C.
    """
    with one_line_errors():
        run_demo(port, typer.echo, once=once)


@app.command()
def version() -> None:
    """Print the version, and whether it is the compiled build."""
    typer.echo(f"{VERSION} (compiled)" if COMPILED else VERSION)


def _print_version(given: bool) -> None:
    if given:
        version()
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="The same as version."),
    ] = False,
) -> None:
    """Take the options that stand before a command."""


def end_with_stdin() -> None:
    """End this process when its standard input is closed, that is, with the process that started it."""
    threading.Thread(target=_wait_for_end_of_stdin, daemon=True).start()


def _wait_for_end_of_stdin() -> None:
    while os.read(0, 1024):
        pass
    for seconds in (_END_GRACE, _CUT_GRACE):
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(seconds)
    os.kill(os.getpid(), signal.SIGKILL)
