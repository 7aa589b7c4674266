"""Compiles the hot modules with mypyc: a build hook of hatchling, and a command for a checkout.

    HATCH_BUILD_HOOKS_ENABLE=1 pip wheel .        a compiled wheel; without the variable, a pure one
    python requirements/hatch_build.py            compiles the modules of this checkout in place

Python is the source and the fallback: Python imports a compiled module instead of the file beside it, if there is one.
`modules` of the hook in pyproject.toml lists what is compiled. A compiler for C and Python's headers are needed.
KBROKER_OPTIMIZATION is the compiler's level: 3, or a lower one for tests, because 3 takes minutes of CPU time.

Source  mypyc's documentation; hatchling's documentation of build hooks
"""

from __future__ import annotations

import os
import shutil
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).parents[1]


def compile_into(directory: Path, modules: list[str]) -> list[Path]:
    """Compile modules of this checkout; returns the libraries, relative to `directory`, which is laid out like it."""
    from mypyc.build import mypycify  # noqa: PLC0415 - only a compiled build needs mypy and setuptools
    from setuptools import Distribution  # noqa: PLC0415
    from setuptools.command.build_ext import build_ext  # noqa: PLC0415

    os.chdir(ROOT)  # mypy finds packages and its settings from here
    with tempfile.TemporaryDirectory() as work:
        extensions = mypycify(
            ["--config-file=pyproject.toml", f"--cache-dir={work}/mypy", *modules],
            target_dir=f"{work}/c",
            group_name="kbroker",
            opt_level=os.environ.get("KBROKER_OPTIMIZATION") or "3",
            debug_level="0",
        )
        command = build_ext(Distribution({"name": "kbroker", "ext_modules": extensions}))
        command.build_lib = str(directory)
        command.build_temp = f"{work}/objects"
        command.ensure_finalized()
        command.run()
        return [Path(each).relative_to(directory) for each in command.get_outputs()]


class CompiledBuild(BuildHookInterface[Any]):
    """Adds the compiled modules to a wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":
            return
        directory = ROOT / "build" / "wheel"
        shutil.rmtree(directory, ignore_errors=True)
        libraries = compile_into(directory, self.config["modules"])
        build_data["force_include"] |= {str(directory / each): str(each) for each in libraries}
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


if __name__ == "__main__":
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    hook = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]
    compile_into(ROOT, hook["modules"])
