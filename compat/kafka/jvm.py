"""The command that starts a JVM with Kafka's jars, tuned to start quickly."""

from __future__ import annotations

import os
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
