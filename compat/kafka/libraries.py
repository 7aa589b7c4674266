"""The jars of Apache Kafka 4.3.1, fetched once by Maven.

`pom.xml` beside this file lists them. They are copied into `$KBROKER_KAFKA_LIBS` if that is set (nothing is fetched
then), else into `${KBROKER_CACHE:-~/.cache/kbroker}/kafka-4.3.1/libs`. The copy goes to a temporary directory that is
renamed when it is whole, so an interrupted run leaves nothing that looks complete.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

KAFKA_VERSION = "4.3.1"
_HERE = Path(__file__).parent
LOG_CONFIGURATION = _HERE / "log4j2.properties"


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
    if target.is_dir():
        return target
    maven = executable("mvn", hint="install Maven, or set KBROKER_KAFKA_LIBS to a directory with Kafka's jars")
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=target.parent, prefix="libs-"))
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={scratch}"]
    done = subprocess.run(
        [maven, "-q", "-B", "-f", str(_HERE / "pom.xml"), *goal], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        shutil.rmtree(scratch)
        raise Unavailable(f"Maven cannot fetch Kafka's jars: {(done.stdout + done.stderr)[-1000:]}")
    try:
        scratch.rename(target)
    except OSError:  # another run was quicker
        shutil.rmtree(scratch)
    return target


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
