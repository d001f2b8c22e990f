"""The build hook for the compiled build: a wheel whose hot modules are extension modules made by mypyc.

Owns: the build backend's hook, and its requirements on the machine. Must never enter: the list of modules,
which is in pyproject.toml; an import that only a compiled build has: the backend reads this file to find the
requirements of that build.

Off unless ``HATCH_BUILD_HOOK_ENABLE_CUSTOM=1`` is set. The sources stay in the wheel, because tracebacks show
them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

#: The folder of all build products, below the root of the project.
FOLDER = Path("build", "mypyc")


class CompiledModules(BuildHookInterface[Any]):
    """A build hook that adds the extension modules to a wheel for this Python and kind of machine only."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the modules, except for an editable installation, whose sources must stay in use."""
        if version == "editable":
            return
        if (reason := obstacle()) is not None:
            sys.exit(f"a compiled build is not possible here: {reason}")
        made = compiled(Path(self.root), self.config["modules"])
        build_data["force_include"].update({str(path): place for path, place in made.items()})
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


def obstacle() -> str | None:
    """Return what is missing on this machine to compile, and where to get it; None if nothing is."""
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler '{compiler}' (Debian: gcc and libc6-dev; or name one in CC)"
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not header.is_file():
        return f"the headers of this Python are missing, there is no {header} (Debian: python3-dev)"
    return None


def compiled(root: Path, modules: list[str]) -> dict[Path, str]:
    """Return the extension modules of ``modules``, each with its place in the wheel."""
    folder = root / FOLDER
    shutil.rmtree(folder / "lib", ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    program = root / "scripts" / "compile_modules.py"
    done = subprocess.run(
        [sys.executable, program, FOLDER, *modules], cwd=root, stdout=sys.stderr, check=False
    )
    if done.returncode:
        sys.exit("the modules could not be compiled; what was wrong is above")
    made = sorted((folder / "lib").rglob("*" + sysconfig.get_config_var("EXT_SUFFIX")))
    return {path: str(path.relative_to(folder / "lib")) for path in made}
