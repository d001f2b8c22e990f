"""``make audit``: checks the licences and the known vulnerabilities of all packages in the lock files.

Owns: the set of allowed licences, and the query for advisories. Must never enter: choosing versions. Exits 1
if something is wrong, and 3 if nothing is but the advisories could not be queried.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
#: The packages that users install, and all that developers and CI install, which includes the former.
PRODUCT, ALL = ROOT / "requirements.lock", ROOT / "requirements-dev.lock"
AUDITOR = "pip-audit==2.10.1"
WRONG, NOT_ASKED = 1, 3

#: None of these licences puts a condition on the mere use of an unchanged package.
ALLOWED = frozenset(
    "0BSD Apache-2.0 BSD-2-Clause BSD-3-Clause ISC MIT MIT-0 MPL-2.0 PSF-2.0 Unlicense Zlib".split()
)
#: Licence names of packages without an SPDX expression, in lower case.
_SPELLINGS = {
    "apache 2.0": "Apache-2.0",
    "apache software license": "Apache-2.0",
    "bsd license": "BSD-3-Clause",
    "isc license": "ISC",
    "isc license (iscl)": "ISC",
    "mit license": "MIT",
    "mozilla public license 2.0 (mpl 2.0)": "MPL-2.0",
    "python software foundation license": "PSF-2.0",
}
_PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;\\]+)", re.MULTILINE)


@dataclass(frozen=True)
class Pin:
    name: str
    version: str


def pins(lock: str) -> list[Pin]:
    """Return the packages and versions that the text of a lock file installs."""
    return [Pin(*found) for found in _PIN.findall(lock)]


def licence_of(name: str) -> str | None:
    """Return the SPDX expression of an installed package, or its other licence text; None if it is not
    installed.
    """
    try:
        metadata = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    classifiers = [
        line.rpartition(" :: ")[2]
        for line in metadata.get_all("Classifier", ())
        if line.startswith("License ::")
    ]
    licence = next((metadata[name] for name in ("License-Expression", "License") if name in metadata), "")
    if licence and "\n" not in licence:
        return _SPELLINGS.get(licence.lower(), licence)
    return (
        " OR ".join(_SPELLINGS.get(line.lower(), line) for line in classifiers)
        or licence[:60]
        or "not stated"
    )


def allowed(expression: str) -> bool:
    """Return True if every part of the expression is, or offers as an alternative, an allowed licence."""
    parts = re.split(r"\s+AND\s+", expression.replace("(", "").replace(")", ""))
    return all(not ALLOWED.isdisjoint(re.split(r"\s+OR\s+", part.strip())) for part in parts)


def wrong_licences(given: Sequence[Pin], shipped: frozenset[str]) -> Iterator[str]:
    """Print the licence of each package and yield each problem."""
    for pin in given:
        licence = licence_of(pin.name)
        place = "product" if pin.name in shipped else "development"
        print(f"{pin.name:24} {pin.version:20} {place:12} {licence}")
        if licence is None:
            yield f"{pin.name} is not installed, so that its licence is not known: run this in .venv"
        elif not allowed(licence):
            yield f"{pin.name} {pin.version}: its licence, {licence!r}, is not one of {sorted(ALLOWED)}"


def advisories(lock: Path) -> Mapping[str, Any] | str:
    """Return the auditor's report of advisories for a lock file, or the reason why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        python = str(Path(folder) / "bin" / "python")
        steps = (
            [sys.executable, "-m", "venv", folder],
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", AUDITOR],
        )
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True, timeout=300)
            if done.returncode:
                return f"the auditor could not be installed: {_last_line(done.stderr)}"
        command = [python, "-m", "pip_audit", "--require-hashes", "--disable-pip", "--format", "json"]
        audit = subprocess.run(
            [*command, "--progress-spinner", "off", "-r", str(lock)],
            capture_output=True,
            text=True,
            timeout=300,
        )
    try:
        return dict(json.loads(audit.stdout))
    except ValueError:
        return _last_line(audit.stderr)


def wrong_versions(reported: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the known vulnerabilities, and the packages that could not be checked."""
    rows = reported["dependencies"]
    known = [
        f"{row['name']} {row['version']}: {flaw['id']}, fixed in {', '.join(flaw['fix_versions']) or 'none'}"
        for row in rows
        for flaw in row.get("vulns", ())
    ]
    return known, [row["name"] for row in rows if "skip_reason" in row]


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make audit", description=__doc__)
    parser.add_argument(
        "--or-say-so",
        action="store_true",
        help="exit 0, with a prominent message, if the advisories cannot be queried",
    )
    options = parser.parse_args(arguments)
    shipped = frozenset(pin.name for pin in pins(PRODUCT.read_text()))
    wrong = list(wrong_licences(pins(ALL.read_text()), shipped))
    reported = advisories(ALL)
    silent = reported
    if not isinstance(reported, str):
        known, unknown = wrong_versions(reported)
        wrong += known
        silent = f"{len(unknown)} packages are unknown to it, {unknown[0]} among them" if unknown else ""
    for line in wrong:
        print(f"!!! {line}")
    if silent:
        print(f"!!! ADVISORIES WERE NOT CHECKED: the service did not answer for all packages ({silent})")
    return WRONG if wrong else NOT_ASKED if silent and not options.or_say_so else 0


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no output"])[-1]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
