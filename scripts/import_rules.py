"""The import rules of the project, and the rule about where an engine may be named.

Owns: the tables of those rules and the check of a source tree against them. Must never enter: an import of a
checked module (sources are read, never run). ``python -m scripts.import_rules`` prints every violation and
exits 1 if there is one.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "gateway"

#: Modules and packages without I/O, without a clock of their own and without third-party packages.
PURE = (
    "gateway.proxy.context",
    "gateway.errors",
    "gateway.exchange",
    "gateway.upstream.address",
    "gateway.upstream.url_patterns",
    "gateway.stores.record",
    "gateway.stores.last_writer_wins.map",
    "gateway.fleet.states",
    "gateway.fleet.weights",
    "gateway.formats.json.ids",
    "gateway.formats.json.splice",
    "gateway.formats.sse",
    "gateway.proxy.query_of_death",
    "gateway.routing",
    "gateway.cards",
)

IO_AND_CLOCKS = frozenset(
    "asyncio concurrent datetime fcntl glob http importlib io logging mmap multiprocessing os pathlib queue "
    "sched select selectors shutil signal socket socketserver sqlite3 ssl subprocess sys tempfile threading "
    "time urllib.request".split()
)
IO_CALLS = frozenset({"open", "input", "print", "breakpoint", "__import__", "exec", "eval"})

#: The parts of ``gateway`` that each package or loose module may import besides itself. A name covers all
#: below it.
PACKAGES: Mapping[str, str] = {
    "errors": "",
    "limits": "",
    "loop": "",
    "cards": "",
    "formats": "cards errors",
    "exchange": "errors formats.contract",
    "version": "exchange",
    "catalog": "exchange formats",
    "upstream": "errors formats.contract limits loop",
    "downstream": "errors formats.contract limits loop",
    "routing": "",
    "stores": "cards loop upstream.address",
    "fleet": "cards errors formats loop routing stores upstream",
    "telemetry": "errors exchange fleet.roster fleet.states fleet.worker formats.contract routing.rendezvous "
    "version",
    # Values only: limits, URL patterns and the names of policies.
    "settings": "cards.structural_tag formats.routes limits routing.policy upstream.address "
    "upstream.url_patterns",
    "security": "downstream.asgi errors formats.contract formats.failures loop",
    "proxy": "downstream errors exchange fleet formats limits loop security.guard telemetry upstream",
    "control": "cards catalog errors fleet formats proxy.aborts security.auth_middleware security.guard "
    "settings stores version",
    # Simulated engines are test doubles: a fault shared with the data plane would stay undetected.
    "sim": "cards.structural_tag loop",
    "prefork": "fleet formats.base formats.optional loop proxy.aborts proxy.lifecycle proxy.query_of_death "
    "proxy.resources stores.last_writer_wins telemetry",
    "wiring": "cards.values catalog control downstream errors fleet formats loop prefork proxy routing "
    "security settings stores telemetry upstream",
    "process": "downstream fleet.quotas prefork proxy.lifecycle settings telemetry.logs upstream.via wiring",
    # Serves the command line: the one package that starts the others.
    "commands": "cards catalog fleet formats process routing.policy settings sim stores "
    "upstream.address upstream.connector version wiring",
    # For authors of formats: drives a complete gateway; the gateway does not import it.
    "testing": "downstream errors fleet formats process proxy settings wiring",
    "__main__": "commands",
}

#: The modules that may import a third-party package.
OWNERS: Mapping[str, tuple[str, ...]] = {
    "fastapi": ("gateway.control",),
    "httptools": ("gateway.downstream", "gateway.upstream", "gateway.sim"),
    "httpx": ("gateway.stores", "gateway.testing", "gateway.commands.workers_api"),
    "hypothesis": ("gateway.testing",),
    "msgspec": ("gateway.formats", "gateway.sim", "gateway.telemetry"),
    "prometheus_client": ("gateway.telemetry",),
    "pydantic": ("gateway.formats", "gateway.control", "gateway.settings"),
    "pydantic_settings": ("gateway.settings.fields",),
    "pytest": ("gateway.testing",),
    "sse_starlette": ("gateway.control.events",),
    "starlette": ("gateway.control",),
    "typer": (
        "gateway.commands.main",
        "gateway.commands.flags",
        "gateway.commands.worker_card",
        "gateway.commands.workers",
    ),
    "uvicorn": (
        "gateway.downstream",
        "gateway.process.server",
        "gateway.process.shutdown",
        "gateway.testing",
    ),
    "uvloop": ("gateway.sim",),
}
#: The modules that all formats share; everything else in gateway.formats is the folder of one format.
FORMAT_HELPERS = frozenset(
    "base contract failures headers id_mapping json large_event long_reply openapi optional options "
    "passthrough paths registry routes routing_data routing_hints sse worker_contract".split()
)
FORMATS_MAY_USE = frozenset({"msgspec", "pydantic"})

ENGINE_WORDS = re.compile("sglang|vllm|trt-?llm|tensorrt", re.IGNORECASE)
#: Packages whose subject is an engine.
ENGINE_PACKAGES = ("gateway.sim",)


@dataclass(frozen=True)
class Allowance:
    """A text in ``module`` that may name an engine. One that matches nothing is a violation itself."""

    module: str
    pattern: str
    reason: str


ALLOWANCES = (
    Allowance(
        "gateway.settings.paths",
        r"DYN_\w*(?:SGLANG|VLLM)_\w+",
        "variables that users of Dynamo have set already are taken under their names there",
    ),
    Allowance(
        "gateway.settings.paths",
        r"(?:sglang|vllm)_(?:generate_path|enable_\w+)|the (?:SGLang|vLLM) (?:generate endpoint|format)"
        r"|{\"vllm\": ",
        "the fields of those variables, their help, and the format of the second path",
    ),
    Allowance(
        "gateway.settings.requests",
        r"(?:DYN_SGLANG_STREAM_MODE|sglang_stream_mode)|What SGLang's stream events hold",
        "an option of one format, and its help",
    ),
    Allowance(
        "gateway.settings.requests", r'"DYN_GENERATE_FORMAT", "sglang"', "a default has to name a format"
    ),
)


@dataclass(frozen=True)
class Module:
    name: str
    source: str
    is_package: bool = False


@dataclass(frozen=True)
class Import:
    """An import. ``target`` is a dotted name: of a module, or of something in a module."""

    target: str
    line: int


@dataclass(frozen=True)
class Violation:
    module: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {self.text}"


Rule = Callable[[Module, list[Import]], Iterator[Violation]]


def check(modules: list[Module]) -> list[Violation]:
    """Return every violation in ``modules``, in their order."""
    found: list[Violation] = []
    for module in modules:
        imports = list(imports_of(module))
        for rule in RULES:
            found.extend(rule(module, imports))
    return found


def read_tree(root: Path = ROOT) -> list[Module]:
    """Return all modules of the package below ``root``."""
    return [_read(path, root) for path in sorted((root / PACKAGE).rglob("*.py"))]


def imports_of(module: Module) -> Iterator[Import]:
    """Return everything ``module`` imports, in any statement; relative imports are resolved."""
    for node in ast.walk(ast.parse(module.source)):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = _origin(module, node)
            yield from (Import(f"{origin}.{alias.name}", node.lineno) for alias in node.names)


def pure_modules_stay_pure(module: Module, imports: list[Import]) -> Iterator[Violation]:
    if not _within(module.name, PURE):
        return
    for each in imports:
        if _third_party(each):
            yield Violation(module.name, each.line, f"is pure and must not import {each.target}")
        elif any(_below(each.target, banned) for banned in IO_AND_CLOCKS):
            yield Violation(module.name, each.line, f"is pure: no I/O and no clock, so no {each.target}")
    for node in ast.walk(ast.parse(module.source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IO_CALLS:
            yield Violation(module.name, node.lineno, f"is pure and must not call {node.func.id}()")
        elif isinstance(node, ast.AsyncFunctionDef | ast.Await):
            yield Violation(module.name, node.lineno, "is pure: nothing in it waits")


def formats_keep_to_themselves(module: Module, imports: list[Import]) -> Iterator[Violation]:
    """Report a format that imports more than errors, the shared helpers and its own folder, or a helper that
    imports a format.
    """
    if not _below(module.name, "gateway.formats"):
        return
    own = _dialect(module.name)
    for each in imports:
        if _third_party(each) and _top(each.target) not in FORMATS_MAY_USE:
            yield Violation(module.name, each.line, f"a format must not import {each.target}")
        if _below(each.target, "gateway.formats") and _dialect(each.target) not in {None, own}:
            yield Violation(module.name, each.line, f"must not know another format: {each.target}")


def packages_import_what_their_row_allows(module: Module, imports: list[Import]) -> Iterator[Violation]:
    """Report an import of ``gateway`` that the module's row in PACKAGES does not list."""
    if module.name == PACKAGE:
        allowed: frozenset[str] = frozenset()
    elif (package := module.name.split(".")[1]) in PACKAGES:
        allowed = frozenset(f"{PACKAGE}.{name}" for name in [package, *PACKAGES[package].split()])
    else:
        yield Violation(module.name, 1, "belongs to no package: give it a row in PACKAGES")
        return
    for each in imports:
        if _top(each.target) == PACKAGE and not _within(each.target, allowed):
            yield Violation(module.name, each.line, f"must not import {each.target}")


def cycle_of(table: Mapping[str, str] = PACKAGES) -> list[str]:
    """Return the packages of ``table`` that are part of an import cycle or depend on one."""
    left = {name: {item.partition(".")[0] for item in row.split()} for name, row in table.items()}
    while free := [name for name, needs in left.items() if not needs & left.keys()]:
        for name in free:
            del left[name]
    return sorted(left)


def third_party_packages_have_owners(module: Module, imports: list[Import]) -> Iterator[Violation]:
    for each in filter(_third_party, imports):
        package = _top(each.target)
        owners = OWNERS.get(package)
        if owners is None:
            yield Violation(module.name, each.line, f"{package} has no owner: give it a row in OWNERS")
        elif not _within(module.name, owners):
            yield Violation(module.name, each.line, f"{package} belongs to {' and '.join(owners)}")


def engines_are_named_at_home(module: Module, imports: list[Import]) -> Iterator[Violation]:
    """Report an identifier, string or comment that names an engine outside the packages about one."""
    if _dialect(module.name) or _within(module.name, ENGINE_PACKAGES):
        return
    text = module.source
    for allowance in ALLOWANCES:
        if allowance.module == module.name:
            text, used = re.subn(allowance.pattern, "", text)
            if not used:
                yield Violation(module.name, 1, f"needs no allowance any more: {allowance.pattern}")
    for number, line in enumerate(text.splitlines(), 1):
        if word := ENGINE_WORDS.search(line):
            yield Violation(module.name, number, f"must not name an engine: {word.group()}")


RULES: tuple[Rule, ...] = (
    pure_modules_stay_pure,
    formats_keep_to_themselves,
    packages_import_what_their_row_allows,
    third_party_packages_have_owners,
    engines_are_named_at_home,
)


def _read(path: Path, root: Path) -> Module:
    parts = path.relative_to(root).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    return Module(".".join(parts[:-1] if is_package else parts), path.read_text(), is_package)


def _origin(module: Module, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    up = node.level - (1 if module.is_package else 0)
    return ".".join([*parts[: len(parts) - up], *filter(None, [node.module])])


def _top(name: str) -> str:
    return name.partition(".")[0]


def _below(name: str, ancestor: str) -> bool:
    return name == ancestor or name.startswith(ancestor + ".")


def _within(name: str, ancestors: tuple[str, ...] | frozenset[str]) -> bool:
    return any(_below(name, ancestor) for ancestor in ancestors)


def _third_party(each: Import) -> bool:
    top = _top(each.target)
    return top != PACKAGE and top not in sys.stdlib_module_names


def _dialect(name: str) -> str | None:
    """Return the format whose folder contains ``name``; None for the helpers that all formats share."""
    parts = name.split(".")
    return (
        parts[2] if parts[1:2] == ["formats"] and len(parts) > 2 and parts[2] not in FORMAT_HELPERS else None
    )


def main() -> int:
    violations = check(read_tree())
    for violation in violations:
        print(violation, file=sys.stderr)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
