"""What Spark does, run by PySpark's own interpreter: `python job.py '{"servers": ..., "jars": [...], ...}'`.

It reads a topic as a batch, prints its rows, and writes them to another topic.
"""

from __future__ import annotations

import base64
import json
import sys
from typing import Any

from pyspark.sql import SparkSession


def text(value: Any) -> str | None:
    """Bytes as JSON can hold them."""
    return None if value is None else base64.b64encode(bytes(value)).decode()


def main() -> None:
    """Read, tell, write."""
    job = json.loads(sys.argv[1])
    settings = SparkSession.builder.master("local[2]").config("spark.jars", ",".join(job["jars"]))
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
    }.items():
        settings = settings.config(key, value)
    spark = settings.getOrCreate()
    read = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", job["servers"])
        .option("subscribe", job["source"])
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .option("includeHeaders", "true")
        .load()
    )
    rows = read.selectExpr(
        "key", "value", "topic", "partition", "offset", "unix_millis(timestamp) AS time", "headers"
    ).collect()
    told = [
        {
            "key": text(row.key),
            "value": text(row.value),
            "topic": row.topic,
            "partition": row.partition,
            "offset": row.offset,
            "time": row.time,
            "headers": [[header.key, text(header.value)] for header in row.headers or []],
        }
        for row in rows
    ]
    (
        read.select("key", "value", "headers")
        .write.format("kafka")
        .option("kafka.bootstrap.servers", job["servers"])
        .option("topic", job["target"])
        .option("includeHeaders", "true")
        .save()
    )
    spark.stop()
    print("ROWS " + json.dumps(told))


if __name__ == "__main__":
    main()
