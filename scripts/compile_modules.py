"""Compilation of Python modules into C extension modules with mypyc.

Owns: the calls of mypyc and the C compiler. Must never enter: the choice of modules (pyproject.toml has it),
the contents of a wheel.

``python scripts/compile_modules.py FOLDER MODULE.py ...``, called where the sources are, writes them to
``FOLDER/lib``, in folders like those of their sources.
"""

from __future__ import annotations

import sys

from mypyc.build import mypycify
from setuptools import Distribution

#: All code is in one extension of this name; the extensions of the modules only refer to it.
GROUP = "gateway"

#: The project's own mypy settings are not used here: they are for finding faults.
SETTINGS = ("--config-file=", "--ignore-missing-imports", "--follow-imports=silent")


def compile_modules(folder: str, modules: list[str]) -> None:
    """Compile ``modules`` into ``folder``."""
    extensions = mypycify(
        [*SETTINGS, f"--cache-dir={folder}/types", "--python-version=3.11", *modules],
        opt_level="3",
        debug_level="0",
        target_dir=f"{folder}/c",
        group_name=GROUP,
    )
    for extension in extensions:
        # A new warning of a newer compiler must not break the build.
        extension.extra_compile_args.append("-Wno-error")
    build = Distribution({"name": GROUP, "ext_modules": extensions}).get_command_obj("build_ext")
    build.build_lib = f"{folder}/lib"
    build.build_temp = f"{folder}/objects"
    build.ensure_finalized()
    build.run()


if __name__ == "__main__":
    compile_modules(sys.argv[1], sys.argv[2:])
