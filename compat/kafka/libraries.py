"""The jars of Apache Kafka 4.3.1, fetched once by Maven.

`pom.xml` in this directory lists them. They come from `$KBROKER_KAFKA_LIBS` if that is set (then nothing is fetched),
else from `${KBROKER_CACHE:-~/.cache/kbroker}/kafka-4.3.1/libs`. Fetched files go to a temporary directory that is
renamed when it is complete, so an interrupted run leaves nothing that looks complete.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

KAFKA_VERSION = "4.3.1"
_HERE = Path(__file__).parent
LOG_CONFIGURATION = _HERE / "log4j2.properties"
ATTEMPTS = 3


class Unavailable(RuntimeError):
    """These tests need a program that is missing on this machine; the message names it and how to get it."""


def cache_directory() -> Path:
    """The cache directory of compat: `$KBROKER_CACHE`, or the user's cache directory."""
    return Path(os.environ.get("KBROKER_CACHE", "~/.cache/kbroker")).expanduser()


def executable(name: str, *, hint: str) -> str:
    """The path of a program, or `Unavailable` with the hint."""
    path = shutil.which(name)
    if path is None:
        raise Unavailable(f"{name} is not on PATH ({hint})")
    return path


@functools.cache
def libraries() -> Path:
    """The directory of Kafka's jars; fetches them on first use.

    Errors: Unavailable if Maven is missing or cannot fetch them.
    """
    given = os.environ.get("KBROKER_KAFKA_LIBS")
    if given:
        if not any(Path(given).glob("kafka-clients-*.jar")):
            raise Unavailable(f"KBROKER_KAFKA_LIBS={given} holds no kafka-clients jar")
        return Path(given)
    target = cache_directory() / f"kafka-{KAFKA_VERSION}" / "libs"
    return fetched(_HERE / "pom.xml", target, hint="install Maven, or set KBROKER_KAFKA_LIBS to a directory with jars")


def fetched(pom: Path, target: Path, *, hint: str = "install Maven") -> Path:
    """The directory `target`, with the jars that a POM lists; Maven fetches them on first use.

    Concurrent callers wait, because Maven's own repository does not support several processes. A failed fetch is
    retried, and keeps what it has already fetched.
    Errors: Unavailable if Maven is missing or cannot fetch them.
    """
    if target.is_dir():
        return target
    maven = executable("mvn", hint=hint)
    target.parent.mkdir(parents=True, exist_ok=True)
    with _alone(cache_directory() / "maven.lock"), tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        if target.is_dir():
            return target
        jars = Path(scratch) / "jars"
        goal = ["dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
        for _ in range(ATTEMPTS):
            done = subprocess.run(
                [maven, "-q", "-B", "-f", str(pom), *goal], capture_output=True, text=True, check=False
            )
            if done.returncode == 0:
                jars.rename(target)
                return target
    raise Unavailable(f"Maven cannot fetch the jars of {pom}: {(done.stdout + done.stderr)[-1000:]}")


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold an exclusive lock between processes on this machine; it is released when the process ends."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@functools.cache
def class_path() -> str:
    """All jars, sorted: an archive of loaded classes is only valid for one order."""
    return os.pathsep.join(str(jar) for jar in sorted(libraries().glob("*.jar")))


def java() -> str:
    """The `java` of `$JAVA_HOME` or of PATH."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    return executable("java", hint="install a JDK or JRE of version 17 or later")
