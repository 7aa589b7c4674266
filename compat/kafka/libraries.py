"""The jars of Apache Kafka 4.3.1, fetched once by Maven.

`pom.xml` beside this file lists them. They are taken from `$KBROKER_KAFKA_LIBS` if that is set (nothing is fetched
then), else from `${KBROKER_CACHE:-~/.cache/kbroker}/kafka-4.3.1/libs`. What is fetched goes to a temporary directory
that is renamed when it is whole, so an interrupted run leaves nothing that looks complete.
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
    """A program that these tests need is not on this machine; the message says which and how to get it."""


def cache_directory() -> Path:
    """Where compat keeps what it fetched: `$KBROKER_CACHE`, or the user's cache directory."""
    return Path(os.environ.get("KBROKER_CACHE", "~/.cache/kbroker")).expanduser()


def executable(name: str, *, hint: str) -> str:
    """The path of a program, or `Unavailable` with the hint."""
    path = shutil.which(name)
    if path is None:
        raise Unavailable(f"{name} is not on PATH ({hint})")
    return path


@functools.cache
def libraries() -> Path:
    """The directory that holds Kafka's jars; fetches them on the first use.

    Errors: Unavailable when there is no Maven, or Maven cannot fetch them.
    """
    given = os.environ.get("KBROKER_KAFKA_LIBS")
    if given:
        if not any(Path(given).glob("kafka-clients-*.jar")):
            raise Unavailable(f"KBROKER_KAFKA_LIBS={given} holds no kafka-clients jar")
        return Path(given)
    target = cache_directory() / f"kafka-{KAFKA_VERSION}" / "libs"
    return fetched(_HERE / "pom.xml", target, hint="install Maven, or set KBROKER_KAFKA_LIBS to a directory with jars")


def fetched(pom: Path, target: Path, *, hint: str = "install Maven") -> Path:
    """The directory `target`, with the jars that a POM lists; Maven fetches them on the first use.

    Whoever else wants jars then waits: Maven's own repository is not made for several at once. What could not be
    fetched is tried again, since much of it has come by then.
    Errors: Unavailable when there is no Maven, or Maven cannot fetch them.
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
    """Nobody else on this machine is here meanwhile; the lock goes with its process."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@functools.cache
def class_path() -> str:
    """All jars, sorted: an archive of loaded classes is only valid for one and the same order."""
    return os.pathsep.join(str(jar) for jar in sorted(libraries().glob("*.jar")))


def java() -> str:
    """The `java` of `$JAVA_HOME` or of PATH."""
    home = os.environ.get("JAVA_HOME")
    if home and (Path(home) / "bin" / "java").exists():
        return str(Path(home) / "bin" / "java")
    return executable("java", hint="install a JDK or JRE of version 17 or later")
