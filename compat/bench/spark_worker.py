"""One query of Spark, run by PySpark's interpreter: `python -m compat.bench.spark_worker '{"format": "kafka", ...}'`.
The format `load` stands for `kbroker.spark.load`.

The clock runs from the call of `load` to the result, in a fresh session, and then once more for the same query unless
`times` is 1. `broker` is the process of the broker, whose processor time counts too. The session has Spark's default
settings.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from compat.bench.spark_ready import ReadyMade
from compat.processes import cpu_seconds, descendants
from compat.spark.session import start_session
from kbroker.spark import load

WORKER = b"pyspark.daemon"


def main() -> None:
    """Run the query, after a small one if memory is measured; print the figures as JSON."""
    job: dict[str, Any] = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory(prefix="kbroker-spark-") as directory:
        spark = start_session(Path(directory), {"spark.driver.extraJavaOptions": ""})
        found: dict[str, float] = {}
        if "small" in job:
            query(spark, job["format"], {**job["options"], **job["small"]})
            found["small_mib"] = peak_mib()
        if job["format"] == ReadyMade.name():
            # Makes Spark look up data sources, which is part of the query for formats that it has to find.
            spark.dataSource.register(ReadyMade)
        for suffix in ("", "_again")[: job.get("times", 2)]:
            spent, began = spent_s(job.get("broker")), time.perf_counter()
            found |= query(spark, job["format"], job["options"])
            found[f"seconds{suffix}"] = time.perf_counter() - began
            found[f"cpu{suffix}"] = spent_s(job.get("broker")) - spent
        found["peak_mib"] = peak_mib()
        print("FIGURES " + json.dumps(found))
        spark.stop()


def query(spark: SparkSession, name: str, options: dict[str, str]) -> dict[str, float]:
    """The number of records, and the bytes of their values."""
    read: DataFrame = load(spark, options) if name == "load" else spark.read.format(name).options(**options).load()
    (row,) = read.selectExpr("count(*) AS records", "sum(length(value)) AS bytes").collect()
    return {"records": row.records, "bytes": row.bytes or 0}


def peak_mib() -> float:
    """The peak resident memory of a Python worker; 0 without workers."""
    found = [0.0]
    for process in descendants(os.getpid()):
        home = Path("/proc") / str(process)
        with contextlib.suppress(OSError):  # it has ended by now
            if WORKER in (home / "cmdline").read_bytes():
                text = (home / "status").read_text()
                found += [int(peak) / 1024 for peak in re.findall(r"VmHWM:\s+(\d+) kB", text)]
    return max(found)


def spent_s(broker: int | None) -> float:
    """User and system time so far of Spark's processes and the broker's."""
    return sum(cpu_seconds(process) for process in (os.getpid(), broker) if process)


if __name__ == "__main__":
    main()
