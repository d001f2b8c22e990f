"""Mutation test of the hot modules: insert one small fault at a time and check that a test fails.

Owns: the mutation operators, the seeded choice of sites, the order in which tests run against a mutant.
Must never enter: names of modules or tests (pyproject.toml, the Makefile and import statements give them),
writes to the checkout (mutants live in temporary copies of it).

    python -m scripts.mutants --seed 12 --count 64 --out build/mutants.json

The hot modules are those that the compiled build compiles. A mutant goes through stages and is killed by the
first test that fails, fails again when run alone, and passes without the mutation:

    near     tests that mirror the module's path or import it
    around   tests that import an importer of it
    suite    what `make test` runs
    system   tests of `near` and `around` that `make test` leaves out; only with `--only-stage system`

The last two take minutes. They run on all mutants together that are left, one of each module at a time; for
each test that fails its mutant is found by halving.

Results are kept in the file `--out`: a second run with the same arguments continues where the first stopped,
and `--only-stage` runs one stage on the mutants that no stage has killed yet.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import importlib.util
import json
import os
import queue
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from itertools import repeat, zip_longest
from pathlib import Path
from typing import Any

ROOT = Path.cwd()
EACH, TOGETHER = ("near", "around"), ("suite", "system")
#: Seconds after which a test counts as hung, and a run of pytest that does not notice it.
TEST_SECONDS = 30
RUN_SECONDS = 1800
PYTEST = (
    *(sys.executable, "-m", "pytest", "-q", "-p", "no:randomly"),
    *("--hypothesis-seed=0", f"--timeout={TEST_SECONDS}"),
)

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.Lt: ast.LtE,
    ast.Gt: ast.GtE,
    ast.Is: ast.IsNot,
    ast.In: ast.NotIn,
}
COMPARISONS |= {after: before for before, after in COMPARISONS.items()}
SIGNS: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add}

#: Results that callers can hardly tell from None.
FALSY = ("None", "False", "0", "0.0", "''", "b''", "()", "[]", "{}")


@dataclass
class Mutant:
    """One replacement of the bytes ``start`` to ``end`` of a module, and what tests made of it."""

    key: str
    path: str
    line: int
    start: int
    end: int
    operator: str
    original: str
    mutated: str
    status: str = "survived"
    stage: str = ""
    by: str = ""
    passed: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        old, new = (" ".join(text.split())[:90] for text in (self.original, self.mutated))
        by = f"  ({self.by})" if self.by else ""
        return f"{self.status:8}  {self.path}:{self.line}  {self.operator}  {old} -> {new}{by}"

    def apply(self, source: bytes) -> bytes:
        """Return the module's text with the mutation in it."""
        return source[: self.start] + self.mutated.encode() + source[self.end :]


def mutations(node: ast.AST) -> Iterator[tuple[str, ast.expr | ast.stmt, str]]:
    """Yield operator, node to replace and new text for each mutation of ``node`` itself."""
    match node:
        case ast.Compare(left, ops, comparators):
            for at, op in enumerate(ops):
                swapped = [*ops[:at], COMPARISONS[type(op)](), *ops[at + 1 :]]
                yield "comparison", node, ast.unparse(ast.Compare(left, swapped, comparators))
        case ast.BoolOp(op, values):
            other = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield "and-or", node, f"({ast.unparse(ast.BoolOp(other, values))})"
        case ast.UnaryOp(ast.Not(), operand):
            yield "drop-not", node, f"({ast.unparse(operand)})"
        case ast.Constant(bool() as value):
            yield "boolean", node, str(not value)
        case ast.Constant(int() as value):
            yield "integer", node, str(value + 1)
        case ast.BinOp() | ast.AugAssign() if not any(map(is_text, ast.iter_child_nodes(node))):
            if (opposite := SIGNS.get(type(node.op))) is not None:
                changed = copy.copy(node)
                changed.op = opposite()
                yield "plus-minus", node, ast.unparse(changed)
        case _:
            yield from statement_mutations(node)


def statement_mutations(node: ast.AST) -> Iterator[tuple[str, ast.expr | ast.stmt, str]]:
    """Yield what ``mutations`` yields, for a statement."""
    match node:
        case ast.Return(ast.expr() as result) if ast.unparse(result) not in FALSY:
            yield "return", node, "return None"
        case ast.If(test) if not isinstance(test, ast.UnaryOp):
            yield "negate-if", test, f"not ({ast.unparse(test)})"
        case ast.Expr(ast.Call() | ast.Await(ast.Call())):
            yield "delete-call", node, "pass"


def is_text(node: ast.AST) -> bool:
    """Return whether ``node`` is a literal of text or bytes, which cannot be subtracted."""
    text = isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    return text or isinstance(node, ast.JoinedStr)


def is_skipped(node: ast.AST, parent: ast.AST) -> bool:
    """Return whether nothing inside ``node`` is mutated."""
    match node:
        case ast.JoinedStr():  # its parts have no exact positions before Python 3.12
            return True
        case ast.FunctionDef(name="__repr__"):
            return True
        case ast.If(ast.Name("TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
            return True
        case ast.Call(ast.Name("TypeVar" | "ParamSpec" | "NewType" | "getLogger")):
            return True
        case ast.Assign(targets=[target]) | ast.AnnAssign(target=target) if isinstance(parent, ast.Module):
            return re.search(r"__all__|\b_?log(ger)?\b|(^|_)log_", ast.unparse(target).lower()) is not None
    return False


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that may be mutated: no annotations, decorators or bases of classes."""
    yield node
    skipped = {"annotation", "returns", "decorator_list", "bases"}
    if isinstance(node, ast.ClassDef):
        skipped.add("keywords")
    for name, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if name not in skipped and isinstance(child, ast.AST) and not is_skipped(child, node):
                yield from walk(child)


def sites(path: str, source: bytes) -> Iterator[Mutant]:
    """Yield every mutant of a module."""
    tree = ast.parse(source)
    unchanged, digest = ast.dump(tree), hashlib.sha256(source).hexdigest()[:8]
    begins = [0]
    for text in source.splitlines(keepends=True):
        begins.append(begins[-1] + len(text))
    for node in walk(tree):
        for operator, place, new in mutations(node):
            start = begins[place.lineno - 1] + place.col_offset
            end = begins[(place.end_lineno or 0) - 1] + (place.end_col_offset or 0)
            old = source[start:end].decode()
            if lines := "\n" * old.count("\n"):
                if "#" in old:
                    continue  # a comment would be lost
                # What follows keeps its line numbers.
                new = f"({new}{lines})" if isinstance(place, ast.expr) else new + lines
            key = f"{path}@{digest}:{start}-{end}:{operator}:{new}"
            mutant = Mutant(key, path, place.lineno, start, end, operator, old, new)
            with suppress(SyntaxError):
                if ast.dump(ast.parse(mutant.apply(source))) != unchanged:
                    yield mutant


def choose(found: dict[str, list[Mutant]], count: int, seed: int) -> list[Mutant]:
    """Return ``count`` mutants, from each module in turn: a random operator, then a random site of it."""
    dice = random.Random(seed)
    modules = sorted(found)
    dice.shuffle(modules)
    left = {path: list(found[path]) for path in modules}
    chosen: list[Mutant] = []
    while len(chosen) < count and any(left.values()):
        for path in filter(left.__getitem__, modules):
            operator = dice.choice(sorted({mutant.operator for mutant in left[path]}))
            chosen.append(dice.choice([mutant for mutant in left[path] if mutant.operator == operator]))
            left[path].remove(chosen[-1])
    return chosen[:count]


class Plan:
    """Which test files belong to which stage of a module."""

    def __init__(self) -> None:
        tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
        wheel, pytest = tool["hatch"]["build"]["targets"]["wheel"], tool["pytest"]["ini_options"]
        self.hot: list[str] = wheel["hooks"]["custom"]["modules"]
        folders = (*wheel["packages"], *pytest["testpaths"])
        files = [path.relative_to(ROOT) for each in folders for path in sorted((ROOT / each).rglob("*.py"))]
        dotted = {".".join(path.with_suffix("").parts).removesuffix(".__init__"): path for path in files}
        self._imports = {str(path): set(map(str, imported(path, dotted))) for path in files}
        never = ignored(pytest["addopts"])
        self._left_out = ignored(subprocess.check_output(["make", "-n", "test"], cwd=ROOT, text=True))
        #: test files, and the path of each below its folder of tests
        self._tests = {
            str(path): str(path.relative_to(folder).with_name(path.stem.removeprefix("test_")))
            for path in files
            for folder in pytest["testpaths"]
            if path.is_relative_to(folder) and not covers(never, str(path))
            if any(fnmatch(path.name, pattern) for pattern in pytest.get("python_files", ["test_*.py"]))
        }

    def stage(self, name: str, paths: Iterable[str]) -> list[str]:
        """Return pytest's arguments for a stage of the modules ``paths``; none if the stage has no tests."""
        if name == "suite":
            return [f"--ignore={each}" for each in self._left_out]
        files: dict[str, None] = {}
        for path in paths:
            inner = path.partition("/")[2].removesuffix(".py")
            importers = {file for file, imports in self._imports.items() if path in imports}
            near = [test for test, mirror in self._tests.items() if f"{mirror}_".startswith(f"{inner}_")]
            near += [test for test in self._tests if test in importers and test not in near]
            around = [test for test in self._tests if test not in near and self._imports[test] & importers]
            around.sort(key=lambda test: (len(self._imports[test]), test))
            files |= dict.fromkeys({"near": near, "around": around, "system": [*near, *around]}[name])
        return [test for test in files if covers(self._left_out, test) == (name == "system")]


def imported(path: Path, dotted: dict[str, Path]) -> Iterator[Path]:
    """Yield the files that the file ``path`` imports by name."""
    for node in ast.walk(ast.parse((ROOT / path).read_bytes())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = path.parts[: -node.level] if node.level else ()
            base = ".".join([*above, *filter(None, [node.module])])
            names = [longer if (longer := f"{base}.{alias.name}") in dotted else base for alias in node.names]
        yield from (dotted[name] for name in names if name in dotted)


def ignored(options: str) -> list[str]:
    """Return the paths that pytest's ``options`` leave out."""
    return re.findall(r"--ignore=(\S+)", options)


def covers(paths: Sequence[str], path: str) -> bool:
    """Return whether ``path`` is one of ``paths`` or below one."""
    return any(path == each or path.startswith(f"{each}/") for each in paths)


class Copy:
    """A copy of the checkout, whose tests import its own modules."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        for name in filter(None, subprocess.check_output(listing, cwd=ROOT, text=True).split("\0")):
            if (ROOT / name).exists():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)

    def write(self, path: str, source: bytes) -> None:
        """Replace a module and remove its bytecode, which may seem to be of the new text."""
        (self._folder / path).write_bytes(source)
        Path(importlib.util.cache_from_source(str(self._folder / path))).unlink(missing_ok=True)

    def pytest(self, arguments: Sequence[str], workers: int = 0, most: int = 1) -> tuple[list[str], str]:
        """Run tests until ``most`` fail; return those, and why the run failed: empty if it did not."""
        command = [*PYTEST, f"--maxfail={most}", f"--numprocesses={workers}", *arguments]
        place: dict[str, Any] = {"cwd": self._folder, "env": {**os.environ, "PYTHONPATH": str(self._folder)}}
        with tempfile.TemporaryFile("w+", errors="replace") as output:
            # In a session of its own, as nothing that a mutant started may outlive it.
            process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True, **place)
            try:
                code = process.wait(RUN_SECONDS)
            except subprocess.TimeoutExpired:
                return [], f"no end in {RUN_SECONDS} s"
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            output.seek(0)
            text = output.read()
        if code in (0, 5):  # 5: there were no tests
            return [], ""
        timed_out = f"no end of a test in {TEST_SECONDS} s" if "+ Timeout +" in text else ""
        # Without parameters, whose text may hold anything.
        tests = re.findall(r"^(?:FAILED|ERROR) ([^\s\[]+)", text, re.MULTILINE)
        last = "".join(text.strip().splitlines()[-1:])
        return list(dict.fromkeys(tests)), timed_out or f"exit {code}: {last}"


class Session:
    """One run: the copies, and the results so far."""

    def __init__(self, options: argparse.Namespace, plan: Plan, mutants: list[Mutant], folder: Path) -> None:
        self._out: Path = options.out
        self._lock = threading.Lock()
        self._workers = max(1, 2 // options.jobs)
        self._plan = plan
        self._mutants = mutants
        self._clean = Copy(folder / "clean")
        self._known: dict[tuple[str, ...], bool] = {}
        self._free: queue.SimpleQueue[Copy] = queue.SimpleQueue()
        for number in range(options.jobs):
            self._free.put(Copy(folder / f"mutant-{number}"))

    def check_copies(self) -> None:
        """Raise RuntimeError unless tests in a copy import the copy's modules."""
        path = next(path for path in self._plan.hot if self._plan.stage("near", [path]))
        test, tree = self._plan.stage("near", [path])[0], self._free.get()
        tree.write(path, b"raise RuntimeError\n")
        if not tree.pytest([test])[1] or not self._passes([test]):
            raise RuntimeError(f"{test} does not test the copy, or fails without a mutation")
        tree.write(path, (ROOT / path).read_bytes())
        self._free.put(tree)

    def run(self, stage: str, pool: Executor) -> None:
        """Run a stage on all mutants that it has not been run on and that are not killed."""
        left = [each for each in self._mutants if each.status == "survived" and stage not in each.passed]
        groups = [[mutant] for mutant in left]
        if stage in TOGETHER:
            modules = [[mutant for mutant in left if mutant.path == path] for path in self._plan.hot]
            groups = [[each for each in row if each] for row in zip_longest(*modules)]
        list(pool.map(self._examine, repeat(stage), groups))

    def _examine(self, stage: str, mutants: list[Mutant]) -> None:
        """Run a stage on mutants of different modules, until no test fails that one of them fails."""
        arguments = self._plan.stage(stage, [mutant.path for mutant in mutants])
        workers = 0 if stage == "near" else self._workers
        tree, why = self._free.get(), "not run yet"
        while arguments and mutants and why:
            with self._applied(tree, mutants):
                tests, why = tree.pytest(arguments, workers, most=10 if len(mutants) > 1 else 1)
            before = mutants
            # A hang or a crash may name no test: then only the whole run can be repeated.
            for again in [[test] for test in tests] or ([arguments] if why else []):
                if (mutant := self._killed_by(again, tree, mutants)) is not None:
                    mutant.status, mutant.stage, mutant.by = "killed", stage, again[0] if tests else why
                    self._end(stage, [mutant])
                    mutants = [each for each in mutants if each is not mutant]
            if mutants == before and why and not tests:
                raise RuntimeError(f"{stage} of {', '.join(map(str, mutants))}: {why}")
            if mutants == before:  # tests that fail by chance, or for two mutants only that meet
                arguments = [*arguments, *(f"--deselect={test}" for test in tests)]
        self._free.put(tree)
        self._end(stage, mutants)

    def _killed_by(self, tests: list[str], tree: Copy, mutants: list[Mutant]) -> Mutant | None:
        """Return the mutant that ``tests`` fail for; None if they fail without one, or for no single one."""
        if not self._passes(tests) or not self._fail(tests, tree, mutants):
            return None
        while len(mutants) > 1:
            middle = len(mutants) // 2
            halves = mutants[:middle], mutants[middle:]
            mutants = next((half for half in halves if self._fail(tests, tree, half)), [])
        return mutants[0] if mutants else None

    def _fail(self, tests: list[str], tree: Copy, mutants: list[Mutant]) -> bool:
        with self._applied(tree, mutants):
            return bool(mutants and tree.pytest(tests, 0 if len(tests) == 1 else self._workers)[1])

    @contextmanager
    def _applied(self, tree: Copy, mutants: list[Mutant]) -> Iterator[None]:
        sources = {mutant.path: (ROOT / mutant.path).read_bytes() for mutant in mutants}
        for mutant in mutants:
            tree.write(mutant.path, mutant.apply(sources[mutant.path]))
        yield
        for path, source in sources.items():
            tree.write(path, source)

    def _passes(self, arguments: list[str]) -> bool:
        """Return whether tests pass without a mutation."""
        if (key := tuple(arguments)) not in self._known:
            self._known[key] = not self._clean.pytest(arguments, 0 if len(key) == 1 else self._workers)[1]
        return self._known[key]

    def _end(self, stage: str, mutants: list[Mutant]) -> None:
        with self._lock:
            for mutant in mutants:
                mutant.passed += [stage] if mutant.status == "survived" else []
                print(f"{stage}: {mutant}", flush=True)
            part = self._out.with_suffix(".part")
            part.write_text(json.dumps([asdict(each) for each in self._mutants], indent=1) + "\n")
            part.replace(self._out)


def main() -> None:
    """Make the mutants, run the tests against each, and print the sums."""
    parser = argparse.ArgumentParser(description="mutation test of the hot modules")
    parser.add_argument("--seed", type=int, default=12)
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time")
    parser.add_argument("--out", type=Path, default=Path("build/mutants.json"))
    parser.add_argument("--only-stage", choices=(*EACH, *TOGETHER))
    options = parser.parse_args()
    plan = Plan()
    found = {path: list(sites(path, (ROOT / path).read_bytes())) for path in plan.hot}
    before = json.loads(options.out.read_text()) if options.out.exists() else []
    known = {row["key"]: Mutant(**row) for row in before}
    mutants = [known.get(each.key, each) for each in choose(found, options.count, options.seed)]
    print(f"{len(mutants)} of {sum(map(len, found.values()))} mutants of {len(found)} modules", flush=True)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(options.jobs) as pool:
        session = Session(options, plan, mutants, Path(folder))
        session.check_copies()
        for stage in [options.only_stage] if options.only_stage else [*EACH, "suite"]:
            session.run(stage, pool)
    print("", *mutants, "", sep="\n")
    for operator in sorted({mutant.operator for mutant in mutants}):
        tally = Counter(mutant.status for mutant in mutants if mutant.operator == operator)
        print(f"{operator:12} killed {tally['killed']:3}  survived {tally['survived']:3}")
    stages = Counter(mutant.stage for mutant in mutants if mutant.status == "killed")
    print(f"killed {stages.total()} of {len(mutants)}: {dict(stages)}")


if __name__ == "__main__":
    main()
