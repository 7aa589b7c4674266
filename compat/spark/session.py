"""Creates Spark sessions with two cores. Workers use this interpreter, and all servers listen on loopback."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import SparkSession

from compat.spark.jars import connector_jars

# The JVM runs for seconds, so optimized compilation does not pay. Hadoop starts a `chmod` for each file that it creates
# on a local disk, thousands in these tests. VFORK does that with one process instead of two.
SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djdk.lang.Process.launchMechanism=VFORK"


def start_session(directory: Path, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session with its temporary files below `directory`.

    Errors: Unavailable without the connector's jars.
    """
    # Spark starts its Python workers by name, which does not find a virtual environment that is not activated.
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    os.environ |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_LOCAL_HOSTNAME": "localhost"}
    builder = SparkSession.builder.master("local[2]").appName("compat.spark")
    for key, value in {
        "spark.jars": ",".join(connector_jars()),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": SHORT_LIVED,
        "spark.local.dir": str(directory / "scratch"),
        "spark.sql.warehouse.dir": str(directory / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        **(settings or {}),
    }.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
