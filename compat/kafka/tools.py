"""Run a main class of Kafka, as its shell scripts do, on a JVM that is tuned to start quickly."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

from compat.kafka.archive import class_archive
from compat.kafka.libraries import LOG_CONFIGURATION, class_path, java

# A tool runs for a second: the first compiler tier and the serial collector save a third of that.
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx256m")


def java_command(main_class: str, *arguments: str, options: Sequence[str] = QUICK_START) -> list[str]:
    """The argv that runs `main_class` with Kafka's jars (see `java_environment`).

    With "-Xshare:auto" among the options it uses the class archive if that exists.
    """
    archive = class_archive() if "-Xshare:auto" in options else None
    quicker = () if archive is None else (f"-XX:SharedArchiveFile={archive}",)
    logging = f"-Dlog4j2.configurationFile=file:{LOG_CONFIGURATION}"
    return [java(), *options, *quicker, logging, "-Djava.awt.headless=true", main_class, *arguments]


def java_environment() -> dict[str, str]:
    """The environment for `java_command`: in an argv, the class path would make every failure message too long."""
    return {**os.environ, "CLASSPATH": class_path()}


def run_tool(
    main_class: str,
    *arguments: str,
    input: str | None = None,
    timeout_s: float = 60,
    options: Sequence[str] = QUICK_START,
) -> subprocess.CompletedProcess[str]:
    """Run a tool to its end; standard output and error are text. The caller checks the return code."""
    return subprocess.run(
        java_command(main_class, *arguments, options=options),
        input=input,
        stdin=subprocess.DEVNULL if input is None else None,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=java_environment(),
        check=False,
    )


def tool(name: str, *arguments: str) -> str:
    """Run a class of `kafka.` or of org.apache.kafka.tools; returns its output. Errors: AssertionError if it fails."""
    done = run_tool(name if name.startswith("kafka.") else f"org.apache.kafka.tools.{name}", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def start_tool(main_class: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a tool with pipes for its standard output and error."""
    return subprocess.Popen(
        java_command(main_class, *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=java_environment(),
    )
