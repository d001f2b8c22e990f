"""Trims recordings of real engines into the fixtures that the tests read.

Owns: which members of a recording a test needs. Must never enter: judging a reply, changing its bytes.

    python scripts/make_fixtures.py SOURCE.jsonl fixtures/<format>

SOURCE holds one exchange a line: ``name``, ``engine``, ``server``, ``request`` {method, path, headers, body
or body_raw}, ``status``, ``headers``, ``body`` or ``body_b64``, ``ended``. The output is three files:
``generate.jsonl`` has every exchange on a native generate route, ``control.jsonl`` those on the routes that a
gateway probes or calls itself, and ``elsewhere.jsonl`` those on all other routes. A reply's ``body`` is the
engine's text unchanged; ``request_body`` is the client's text or, if the recording kept it parsed, the same
document written compactly.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GENERATE_PATHS = frozenset({"/generate", "/inference/v1/generate"})
CONTROL_PATHS = frozenset(
    {
        "/abort_request",
        "/abort_requests",
        "/get_model_info",
        "/get_server_info",
        "/health",
        "/inference/v1/abort_requests",
        "/load",
        "/model_info",
        "/ping",
        "/ready",
        "/server_info",
        "/v1/loads",
        "/v1/models",
        "/version",
    }
)
# Set by the recorder's own HTTP client, the same in every exchange.
_RECORDERS = frozenset({"accept", "content-length", "host"})


def read(source: Path) -> Iterator[dict[str, Any]]:
    with source.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def request_body(request: dict[str, Any]) -> str | None:
    """Return the body as text: as recorded if it was kept raw, else written compactly."""
    if "body_raw" in request:
        return str(request["body_raw"])
    if request.get("body") is None:
        return None
    return json.dumps(request["body"], ensure_ascii=False, separators=(",", ":"))


def trim(record: dict[str, Any]) -> dict[str, Any]:
    """Return one line of a fixture file; a missing member means none."""
    request = record["request"]
    headers = [[k.lower(), v] for k, v in request.get("headers", {}).items() if k.lower() not in _RECORDERS]
    kept = {
        "name": record["name"],
        "server": record.get("server"),
        "method": request["method"],
        "path": request["path"],
        "request_headers": headers,
        "request_body": request_body(request),
        "status": record.get("status"),
        "headers": [[k.lower(), v] for k, v in record.get("headers", ())],
        "body": record.get("body"),
        "body_b64": record.get("body_b64"),
        "ended": record.get("ended"),
        "elided": True if record.get("body_elided") else None,
    }
    return {key: value for key, value in kept.items() if value is not None}


def kind(path: str) -> str:
    """Return the name of the file for exchanges on ``path``."""
    if path in GENERATE_PATHS:
        return "generate"
    return "control" if path in CONTROL_PATHS else "elsewhere"


def write(records: list[dict[str, Any]], target: Path) -> None:
    lines = (json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n" for record in records)
    target.write_text("".join(lines), encoding="utf-8")
    sys.stdout.write(f"{target}: {len(records)} exchanges, {target.stat().st_size} bytes\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Trim recordings of real engines into fixtures.")
    parser.add_argument("source", type=Path, help="the recording, one JSON object a line")
    parser.add_argument("out", type=Path, help="folder for the three files")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    records = list(read(arguments.source))
    for name in ("generate", "control", "elsewhere"):
        chosen = [trim(record) for record in records if kind(record["request"]["path"]) == name]
        write(chosen, arguments.out / f"{name}.jsonl")


if __name__ == "__main__":
    main()
