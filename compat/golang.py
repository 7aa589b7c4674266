"""Go programs for tests, built once from the Go module proxy.

A Go since 1.21 fetches by itself the release that a module requires; for an older one, as in Debian 12, this module
fetches one that does.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from compat.kafka.libraries import Unavailable, cache_directory, executable

GO_RELEASE = "go1.24.8"
FETCHES_RELEASES = (1, 21)
ATTEMPTS = 3


class Program:
    """A Go program whose sources are a directory of this repository, `module` in Python's notation.

    The program is in `${KBROKER_CACHE:-~/.cache/kbroker}`, where `python -m MODULE` builds it, which needs Go and takes
    half a minute; `.ci/run` does. Tests do not build it.
    """

    def __init__(self, source: Path, module: str) -> None:
        self.source, self.module = source, module

    @functools.cached_property
    def path(self) -> Path:
        """The path of the build of these sources."""
        sources = sorted([*self.source.glob("*.go"), *self.source.glob("go.*")])
        digest = hashlib.sha256(b"".join(each.read_bytes() for each in sources)).hexdigest()
        return cache_directory() / f"{self.source.name}-{digest[:16]}" / self.source.name

    def binary(self) -> Path:
        """The program. Errors: Unavailable, with how to get it."""
        if not os.access(self.path, os.X_OK):
            raise Unavailable(f"{self.path} is not a program (install Go and run `python -m {self.module}`)")
        return self.path

    def build(self) -> Path:
        """Build the program if it is missing. Errors: Unavailable without Go, or if Go cannot build it."""
        with contextlib.suppress(Unavailable):
            return self.binary()
        install(".", self.path.parent, source=self.source)
        return self.binary()

    def main(self) -> None:
        """Build the program if it is missing, and print its path."""
        try:
            print(self.build())
        except Unavailable as error:
            sys.exit(str(error))


def install(package: str, target: Path, *, source: Path | None = None) -> None:
    """Build a program into the directory `target`, which appears when it is complete.

    Shape   package is `path@version`, or `.` for the module in `source`
    Errors  Unavailable without Go, or if Go cannot build it
    """
    go = executable("go", hint="install Go")
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix="go-"))
    try:
        environment = {"GOBIN": str(scratch / "bin"), "CGO_ENABLED": "0"}
        command = [_new_enough(go), "install", "-ldflags=-s -w", package]
        _go(command, cwd=source or scratch, environment=environment)
        with contextlib.suppress(OSError):  # another run was faster
            (scratch / "bin").rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _new_enough(go: str) -> str:
    """A Go that fetches releases: this one, or a newer one from the module proxy."""
    found = re.search(r"\bgo(\d+)\.(\d+)", _go([go, "version"]))
    if found is None or (int(found[1]), int(found[2])) >= FETCHES_RELEASES:
        return go
    platform = _go([go, "env", "GOHOSTOS", "GOHOSTARCH"]).split()
    module = f"golang.org/toolchain@v0.0.1-{GO_RELEASE}.{'-'.join(platform)}"
    directory = Path(json.loads(_go([go, "mod", "download", "-json", module]))["Dir"])
    # Files of a module are not executable; only newer releases know that these are programs.
    for program in [*directory.glob("bin/*"), *directory.glob("pkg/tool/*/*")]:
        program.chmod(0o755)
    return str(directory / "bin" / "go")


def _go(command: Sequence[str], *, cwd: Path | None = None, environment: Mapping[str, str] | None = None) -> str:
    """The output of Go. Failures are retried, because most of the work is downloading. Errors: Unavailable."""
    own = {key: value for key, value in os.environ.items() if key != "GOROOT"}
    for _ in range(ATTEMPTS):
        done = subprocess.run(
            command, env={**own, **(environment or {})}, cwd=cwd, capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            return done.stdout
    raise Unavailable(f"Go fails: {done.stderr[-2000:]}")
