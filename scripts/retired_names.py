"""Identifiers that this project no longer uses, and a check that none comes back.

Owns: the list of retired words, each with the field's term, and the search for them in Python sources. Must
never enter: prose (docs/glossary.md has the terms), an import of what is checked.

``python -m scripts.retired_names [FOLDER ...]`` prints every use and exits 1 if there is one.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("gateway", "tests", "scripts", "benchmarks")

#: A word within an identifier -> what the field says instead.
WORDS: Mapping[str, str] = {
    "barren": "non-body bytes",
    "bell": "signal pipe",
    "buried": "merge final counts",
    "bury": "merge final counts",
    "came": "received, added",
    "complaint": "error, problem",
    "deaf": "discard input",
    "door": "auth middleware",
    "doubtful": "do not reuse",
    "errand": "call, task",
    "homeless": "cordon without a worker",
    "hung": "installed",
    "knob": "setting, option",
    "knock": "first contact",
    "knocks": "first contacts",
    "lacking": "missing",
    "lacks": "missing",
    "lapse": "departure",
    "lapses": "departures",
    "lifted": "removed",
    "lone": "sole",
    "peek": "fields, parse",
    "peeked": "fields, parsed",
    "rang": "signalled",
    "realm": "scope",
    "rung": "drained",
    "said": "reported, message, recorded",
    "saying": "update",
    "sayings": "updates",
    "scraps": "fragments",
    "shed": "release",
    "shedding": "body release",
    "seat": "candidate, endpoint",
    "seats": "candidates, endpoints",
    "sheds": "releases",
    "siblings": "peers",
    "strike": "failed probe",
    "strikes": "failed probes",
    "told": "notified, reported, known",
    "unhold": "uncordon",
    "unsaid": "not recorded",
    "untold": "not notified",
    "vanished": "unreachable, removed",
    "vital": "health",
    "waive": "allow",
    "waived": "ignored",
    "whole": "unary, complete, entire, aggregate",
    "wishes": "changes",
}

#: Words that are retired as the name of a function or method only.
FUNCTIONS: Mapping[str, str] = {
    "left": "on_client_disconnect, on_record_removed, remaining",
    "hold": "cordon (a worker), enqueue (a request)",
}


def uses(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield (line, identifier, the field's term) for each retired word among the names ``source`` defines."""
    for node in ast.walk(ast.parse(source)):
        for name, line, callable_ in _names(node):
            for word in _words(name):
                if word in WORDS:
                    yield line, name, WORDS[word]
                elif callable_ and word in FUNCTIONS and name.strip("_") == word:
                    yield line, name, FUNCTIONS[word]


def _names(node: ast.AST) -> Iterator[tuple[str, int, bool]]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield node.name, node.lineno, True
        case ast.ClassDef():
            yield node.name, node.lineno, False
        case ast.arg():
            yield node.arg, node.lineno, False
        case ast.Name(ctx=ast.Store()):
            yield node.id, node.lineno, False
        case ast.Attribute(ctx=ast.Store()):
            yield node.attr, node.lineno, False


def _words(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def check(*folders: str) -> list[str]:
    """Return ``path:line: name (use: ...)`` for every retired name in the Python files of ``folders``."""
    found = []
    for folder in folders or FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for line, name, term in uses(path.read_text()):
                found.append(f"{path.relative_to(ROOT)}:{line}: {name} (use: {term})")
    return found


def main() -> int:
    found = check(*sys.argv[1:])
    print("\n".join(found) or "no retired name")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
