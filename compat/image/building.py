"""Builds the image with buildah, and runs commands in it as its user.

It uses chroot isolation and vfs storage, which work where containers do not nest. The base is a minimal Debian with
Python from debootstrap, so no image registry is needed. Python packages come from a directory of wheels, so the build
needs no network. Everything is in one directory, which is removed at the end.

The compiler optimizes less than for a delivered image, which saves minutes of CPU time.

    KBROKER_DEBIAN_MIRROR   Debian mirror for debootstrap, instead of its default
    KBROKER_IMAGE_BASE      a directory with the root of a Debian that has python3-venv, instead of a new one
"""

from __future__ import annotations

import json
import os
import platform
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from compat.kafka.libraries import Unavailable

ROOT = Path(__file__).parents[2]
SUITE = "bookworm"
BASE, IMAGE = "localhost/kbroker-base", "localhost/kbroker"
TOOLS = ("buildah", "debootstrap")
START_SECONDS, STOP_SECONDS = 30.0, 15.0
READY = "Kafka Server started"
_MEGABYTES = {"KB": 1e-3, "MB": 1.0, "GB": 1e3}


class CannotBuild(Unavailable):
    """A prerequisite of the build is missing."""


def as_root() -> list[str]:
    """The command prefix to run a command as root.

    Errors: CannotBuild
    """
    if os.geteuid() == 0:
        return []
    if (
        shutil.which("sudo")
        and subprocess.run(["sudo", "-n", "true"], capture_output=True, check=False).returncode == 0
    ):
        return ["sudo", "-n", "--preserve-env=http_proxy,https_proxy,no_proxy"]
    raise CannotBuild("building an image takes root, or sudo without a password")


class Images:
    """An image storage in its own directory.

    Errors: CannotBuild from the constructor if a tool is missing; subprocess.CalledProcessError if one fails
    """

    def __init__(self, directory: Path) -> None:
        lacking = [tool for tool in TOOLS if shutil.which(tool, path=f"{os.environ['PATH']}:/usr/sbin") is None]
        if lacking:
            raise CannotBuild(f"there is no {' and no '.join(lacking)} here")
        self._root = as_root()
        self.directory = directory
        storage = ["--root", str(directory / "storage"), "--runroot", str(directory / "run"), "--storage-driver", "vfs"]
        self._buildah = [*self._root, "buildah", *storage]

    def build(self) -> None:
        """Create the base and build the image on it."""
        given = os.environ.get("KBROKER_IMAGE_BASE")
        base = Path(given) if given else self._make_base()
        wheels = self._download_wheels(base)
        container = self.buildah("from", "scratch")
        self.buildah("add", "--quiet", container, str(base), "/")
        self.buildah("commit", "--quiet", "--format", "docker", "--rm", container, BASE)
        if not given:
            self._run("rm", "-rf", str(base))
        self.buildah(
            "bud", "--quiet", "--isolation", "chroot", "--format", "docker", "--network", "host",
            "--build-arg", f"BASE={BASE}", "--build-arg", "OPTIMIZATION=0",
            "--build-arg", "PIP_ARGUMENTS=--no-index --find-links=/wheels",
            "--volume", f"{wheels}:/wheels:ro", "--tag", IMAGE, str(ROOT),
        )  # fmt: skip

    def buildah(self, *arguments: str) -> str:
        """Run buildah; returns its output."""
        return _output([*self._buildah, *arguments])

    def description(self) -> dict[str, Any]:
        """The image's configuration, in Docker's form."""
        found: dict[str, Any] = json.loads(self.buildah("inspect", "--type", "image", IMAGE))["Docker"]
        return found

    def size_mb(self) -> dict[str, float]:
        """The sizes of the base and of the whole image, by name."""
        found = json.loads(self.buildah("images", "--json"))
        return {
            name.rpartition(":")[0]: float(number) * _MEGABYTES[unit]
            for image in found
            for number, unit in [image["size"].split()]
            for name in image["names"] or ()
        }

    def container(self) -> Container:
        """A new container of the image; it is removed with the storage."""
        return Container(self, self.buildah("from", IMAGE))

    def start(self, container: str, *command: str, options: list[str]) -> subprocess.Popen[bytes]:
        """Run a command in a container; stdout and stderr are one stream."""
        words = [*self._buildah, "run", "--isolation", "chroot", "--network", "host", *options, container, *command]
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def signal(self, process: int, number: int) -> None:
        """Send a signal to a process of any user."""
        self._run("kill", f"-{number}", str(process))

    def discard(self) -> None:
        """Remove everything."""
        self._run("rm", "-rf", "--one-file-system", str(self.directory))

    def _make_base(self) -> Path:
        base = self.directory / "base"
        mirror = os.environ.get("KBROKER_DEBIAN_MIRROR")
        include = "--include=python3,python3-venv,python3-dev,gcc"
        path = f"PATH={os.environ['PATH']}:/usr/sbin:/sbin"
        self._run(
            "env", path, "debootstrap", "--variant=minbase", include, SUITE, str(base), *([mirror] if mirror else [])
        )
        # As in the slim Python images: no caches and documentation, which would only be copied and removed.
        needless = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale", "usr/share/man")
        self._run("rm", "-rf", *(str(base / path) for path in needless))
        return base

    def _download_wheels(self, base: Path) -> Path:
        """The locked packages for the Python of the base."""
        (python,) = (path.name for path in (base / "usr/lib").glob("python3.*"))
        wheels = self.directory / "wheels"
        platforms = [f"--platform={kind}_{platform.machine()}" for kind in ("manylinux2014", "manylinux_2_28")]
        _output(
            [
                *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
                *("--require-hashes", "--dest", str(wheels)),
                *("--requirement", str(ROOT / "requirements/run.txt")),
                *("--requirement", str(ROOT / "requirements/compile.txt")),
                *("--only-binary=:all:", f"--python-version={python.removeprefix('python')}", *platforms),
            ]
        )
        return wheels

    def _run(self, *command: str) -> None:
        _output([*self._root, *command])


class Container:
    """A container of the image; commands run as its user, on the network of this machine."""

    def __init__(self, images: Images, name: str) -> None:
        self.images = images
        self.name = name

    def write(self, path: str, text: str) -> None:
        """Write an executable file into the container, owned by root, as Docker's cp does."""
        source = self.images.directory / "copied"
        source.write_text(text)
        source.chmod(0o777)
        self.images.buildah("copy", "--quiet", "--chmod", "777", self.name, str(source), path)

    def run(self, *command: str, **variables: str) -> tuple[int, str]:
        """Run a command to its end; returns its exit code and output."""
        with self.running(*command, **variables) as running:
            return running.wait(), running.log

    @contextmanager
    def running(self, *command: str, options: Sequence[str] = (), **variables: str) -> Iterator[Running]:
        """Run a command with these variables, and options of `buildah run`, for the duration of the block."""
        options = [*options, *(f"--env={name}={value}" for name, value in variables.items())]
        running = Running(self.images, self.images.start(self.name, *command, options=options))
        try:
            yield running
        finally:
            running.end()


class Running:
    """A running command in a container, and its output."""

    def __init__(self, images: Images, process: subprocess.Popen[bytes]) -> None:
        self.log = ""
        self._images = images
        self._process = process

    def wait_for(self, pattern: str) -> str:
        """Wait until the log matches a pattern; returns the log."""
        deadline = time.monotonic() + START_SECONDS
        while not re.search(pattern, self.log):
            assert self._read(deadline - time.monotonic()), f"{pattern!r} is not in the log:\n{self.log}"
        return self.log

    def wait(self) -> int:
        """Wait for the end; returns the exit code of the command."""
        deadline = time.monotonic() + START_SECONDS
        while self._read(deadline - time.monotonic()):
            pass
        return self._process.wait(timeout=STOP_SECONDS)

    def port(self) -> int:
        """The broker's port, from its ready line."""
        found = re.search(r"kbroker ready on .*:(\d+)", self.log)
        assert found, self.log
        return int(found[1])

    def broker(self) -> int:
        """The process that buildah's own processes have started, or that their shell has become."""
        process = self._process.pid
        while children := _children(process):
            (process,) = children[-1:]
        return process

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Signal the command's process, as a container runtime signals the first process; returns the exit code."""
        self._images.signal(self.broker(), number)
        return self.wait()

    def end(self) -> None:
        """Kill the command if it still runs."""
        if self._process.poll() is None:
            self._images.signal(self.broker(), signal.SIGKILL)
            try:
                self._process.communicate(timeout=STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._images.signal(self._process.pid, signal.SIGKILL)
        self._process.communicate()

    def _read(self, seconds: float) -> bool:
        assert self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], max(0.0, seconds))
        data = os.read(self._process.stdout.fileno(), 65536) if readable else b""
        self.log += data.decode(errors="replace")
        return bool(data)


def _children(process: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{process}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found


def _output(command: list[str]) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        error = subprocess.CalledProcessError(done.returncode, command)
        error.add_note(done.stdout[-4000:])
        raise error
    return done.stdout.strip()
