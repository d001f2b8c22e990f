"""Lists the fields of an engine's requests and replies that its format does not know, or no longer finds.

Owns: where each engine's sources keep their names. Must never enter: an import of an engine (its sources are
read, never run), or the use a format makes of a field (``scripts.known_fields`` lists that).

    python -m scripts.engine_fields ENGINE [PACKAGE_FOLDER]

PACKAGE_FOLDER is the engine's installed package, by default that of the engine which ``make test-engines``
installs. Prints ``new`` and ``gone`` names, one a line, and exits 1 if there is a new one.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

from scripts.engines import paths

#: A package folder -> the names found in it, in the order of the source. Raises Missing.
Locator = Callable[[Path], list[str]]


class Missing(Exception):
    """A source is not where it was. The message names what was searched."""


@dataclass(frozen=True)
class Difference:
    """A field that differs. ``change`` is ``new`` (the engine has it, the format does not know it) or
    ``gone``.
    """

    change: str
    group: str
    name: str

    def __str__(self) -> str:
        return f"{self.change} {self.group}.{self.name}"


def class_fields(package: Path, *, files: str, classes: Sequence[str]) -> list[str]:
    """Return the annotated public fields of ``classes``, which may be in any of ``files`` (a pattern) below
    ``package``.

    A class may be missing, because releases split and join them, but not all of them.
    """
    bodies = [body for path in sorted(package.glob(files)) for body in _classes(path, classes)]
    if not bodies:
        raise Missing(f"no class {' or '.join(classes)} in {package.name}/{files}")
    return list(dict.fromkeys(name for body in bodies for name in _fields(body)))


def _classes(path: Path, names: Sequence[str]) -> Iterator[ast.ClassDef]:
    text = path.read_text(encoding="utf-8")
    if any(f"class {name}" in text for name in names):
        tree = ast.parse(text)
        yield from (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name in names)


def _fields(body: ast.ClassDef) -> Iterator[str]:
    for node in body.body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        if not node.target.id.startswith("_") and "ClassVar" not in ast.unparse(node.annotation):
            yield node.target.id


def written_keys(
    package: Path, *, files: Sequence[str], objects: Sequence[str], sides: bool = False
) -> list[str]:
    """Return the names of members that functions in ``files`` write into dictionaries with names in
    ``objects``.

    ``sides``: a name that begins with ``{side}`` counts as two names: prompt and output. Raises Missing.
    """
    keys: dict[str, None] = {}
    for path in [package / file for file in files]:
        if not path.exists():
            raise Missing(f"no file {path.name} in {package.name}/{path.parent.relative_to(package)}")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found = _keys(node, objects) if not (sides and _has_side(node)) else iter([node])
            keys |= dict.fromkeys(name for key in found for name in _names(key))
    return list(keys)


def _keys(node: ast.AST, objects: Sequence[str]) -> Iterator[ast.AST | None]:
    """Yield the key of ``object[key] = ...``, and the keys of a dictionary assigned to the object."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Subscript) and _is(target.value, objects):
                yield target.slice
            elif _is(target, objects) and isinstance(node.value, ast.Dict):
                yield from node.value.keys
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "update":
        if _is(node.func.value, objects) and node.args and isinstance(node.args[0], ast.Dict):
            yield from node.args[0].keys


def _has_side(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) and ast.unparse(node)[2:].startswith("{side}_")


def _is(node: ast.expr, objects: Sequence[str]) -> bool:
    """Return True if ``node`` is one of the ``objects``, by its own name or as an attribute."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.slice, ast.Constant) and node.slice.value in objects
    return isinstance(node, ast.Name) and node.id in objects


def _names(key: ast.AST | None) -> Iterator[str]:
    if isinstance(key, ast.Constant) and isinstance(key.value, str):
        yield key.value
    elif isinstance(key, ast.JoinedStr):
        rest = "".join(str(part.value) for part in key.values if isinstance(part, ast.Constant))
        yield from (side + rest for side in ("input", "output"))


def literal_keys(package: Path, *, file: str, functions: Sequence[str]) -> list[str]:
    """Return the keys of dictionaries that ``functions`` in ``file`` write as literals. Raises Missing."""
    path = package / file
    tree = ast.parse(path.read_text(encoding="utf-8")) if path.exists() else ast.Module([], [])
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in functions]
    if not found:
        raise Missing(f"no function {' or '.join(functions)} in {package.name}/{file}")
    written = [node for body in found for node in ast.walk(body)]
    keys = [key for node in written if isinstance(node, ast.Dict) for key in node.keys]
    keys += [node.slice for node in written if isinstance(node, ast.Subscript)]
    return list(dict.fromkeys(name for key in keys for name in _names(key)))


_SGLANG: Mapping[str, Locator] = {
    "request": partial(class_fields, files="srt/managers/io_struct.py", classes=("GenerateReqInput",)),
    "sampling": partial(class_fields, files="srt/sampling/sampling_params.py", classes=("SamplingParams",)),
    "reply": partial(
        written_keys, files=("srt/managers/tokenizer_manager.py",), objects=("out_dict", "out", "result")
    ),
    "meta_info": partial(
        written_keys,
        files=(
            "srt/managers/tokenizer_manager.py",
            "srt/observability/req_time_stats.py",
            "srt/utils/weight_versions.py",
            "srt/beam_search/output.py",
        ),
        objects=("meta_info", "meta_data"),
        sides=True,
    ),
}

_VLLM_API = "entrypoints/**/protocol.py"
_VLLM_GENERATE = "entrypoints/**/token_in_token_out/protocol.py"


def _vllm(files: str, *classes: str) -> Locator:
    return partial(class_fields, files=files, classes=classes)


_VLLM: Mapping[str, Locator] = {
    "request": _vllm(_VLLM_GENERATE, "GenerateRequest"),
    "sampling": _vllm("sampling_params.py", "SamplingParams"),
    "stream_options": _vllm(_VLLM_API, "StreamOptions"),
    "features": _vllm(_VLLM_GENERATE, "MultiModalFeatures"),
    "placeholder": _vllm(_VLLM_GENERATE, "PlaceholderRangeInfo"),
    "reply": _vllm(
        _VLLM_GENERATE,
        *("GenerateResponse", "GenerateResponseBase", "GenerateStreamResponse", "GenerateStreamResponseBase"),
        *("GenerateTokensResponse", "GenerateTextResponse", "GenerateDerenderResponse"),
        *("GenerateTokensStreamResponse", "GenerateTextStreamResponse"),
    ),
    "choice": _vllm(
        _VLLM_GENERATE,
        *("GenerateResponseChoice", "GenerateResponseStreamChoice", "GenerateChoiceBase"),
        *("GenerateStreamChoiceBase", "GenerateTokensChoice", "GenerateTextChoice", "GenerateDerenderChoice"),
        *("GenerateTokensStreamChoice", "GenerateTextStreamChoice"),
    ),
    "logprobs": _vllm(_VLLM_GENERATE, "GenerateLogProbs"),
    "logprob": _vllm(_VLLM_GENERATE, "GenerateLogProb", "GenerateLogProbsContent"),
    "usage": _vllm(_VLLM_API, "UsageInfo"),
    "prompt_usage": _vllm(_VLLM_API, "PromptTokenUsageInfo"),
    "completion_usage": _vllm(_VLLM_API, "CompletionTokenUsageInfo"),
    "weight_versions": _vllm("**/*.py", "WeightVersionSpan"),
    "metrics": _vllm("**/*.py", "PerRequestMetrics"),
    "error": _vllm(_VLLM_API, "ErrorInfo"),
}

_TRTLLM_API = "serve/openai_protocol.py"


def _trtllm(*classes: str) -> Locator:
    return partial(class_fields, files=_TRTLLM_API, classes=classes)


def _trtllm_event(*functions: str) -> Locator:
    return partial(literal_keys, file="_utils.py", functions=functions)


_TRTLLM: Mapping[str, Locator] = {
    "request": _trtllm("CompletionRequest"),
    "stream_options": _trtllm("StreamOptions"),
    "reply": _trtllm("CompletionResponse", "CompletionStreamResponse"),
    "choice": _trtllm("CompletionResponseChoice", "CompletionResponseStreamChoice"),
    "logprobs": _trtllm("CompletionLogProbs"),
    "usage": _trtllm("UsageInfo"),
    "prompt_usage": _trtllm("PromptTokensDetails"),
    "error": _trtllm("ErrorResponse"),
    "model": _trtllm("ModelCard"),
    "kv_event": _trtllm_event("to_json_str"),
    "kv_created": _trtllm_event("_created_to_json"),
    "kv_stored": _trtllm_event("_stored_to_json"),
    "kv_block": _trtllm_event("_stored_block_to_json"),
    "kv_token": _trtllm_event("_unique_tokens_to_json"),
    "kv_removed": _trtllm_event("_removed_to_json"),
}

#: Engine -> group of fields -> where to find it. The groups are those of the format's FIELDS.
SOURCES: Mapping[str, Mapping[str, Locator]] = {"sglang": _SGLANG, "trtllm": _TRTLLM, "vllm": _VLLM}


def known_fields(engine: str) -> Mapping[str, Mapping[str, object]]:
    """Return the field table of the format with that name."""
    fields: Mapping[str, Mapping[str, object]] = import_module(f"scripts.known_fields.{engine}").FIELDS
    return fields


def package_of(engine: str) -> Path:
    """Return the package of the engine that ``make test-engines`` installed. Raises Missing."""
    found = sorted(paths.environment(engine).glob(f"lib/python3*/site-packages/{engine}"))
    if not found:
        raise Missing(f"{engine} is not installed in {paths.environment(engine)}")
    return found[0]


def differences(engine: str, package: Path) -> list[Difference]:
    """Return all differences, group by group. Raises Missing if a whole group is not found."""
    found: list[Difference] = []
    known = known_fields(engine)
    for group, locate in SOURCES[engine].items():
        names = locate(package)
        found += (Difference("new", group, name) for name in names if name not in known[group])
        found += (Difference("gone", group, name) for name in known[group] if name not in names)
    return found


def main(arguments: Sequence[str]) -> int:
    if not 1 <= len(arguments) <= 2 or arguments[0] not in SOURCES:
        print(f"usage: python -m scripts.engine_fields {'|'.join(SOURCES)} [PACKAGE_FOLDER]", file=sys.stderr)
        return 2
    engine = arguments[0]
    try:
        package = Path(arguments[1]) if len(arguments) == 2 else package_of(engine)
        found = differences(engine, package)
    except Missing as error:
        print(error, file=sys.stderr)
        return 2
    for difference in found:
        print(difference)
    return 1 if any(difference.change == "new" for difference in found) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
