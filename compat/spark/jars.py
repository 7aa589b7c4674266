"""Spark's stock Kafka connector, fetched once by Maven.

`pom.xml` in this folder lists its jars. They go to `${KBROKER_CACHE:-~/.cache/kbroker}/spark-4.0.0/jars`.
"""

from __future__ import annotations

from pathlib import Path

from compat.kafka.libraries import cache_directory, fetched

SPARK_VERSION = "4.0.0"
_POM = Path(__file__).with_name("pom.xml")


def connector_jars() -> list[str]:
    """The paths of the jars. Fetches them on first use.

    Errors: Unavailable if Maven is missing or cannot fetch them.
    """
    target = fetched(_POM, cache_directory() / f"spark-{SPARK_VERSION}" / "jars")
    return sorted(str(jar) for jar in target.glob("*.jar"))
