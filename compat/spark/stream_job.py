"""A driver for tests that kill it: `python -m compat.spark.stream_job '{"servers": ..., "topic": ..., ...}'`.

One stream copies a topic to Parquet files, exactly once, and another one copies it to a topic, at least once. After
the line `finish` on standard input, both read what the topic has and end. Then the rows of the files, as Spark reads
them, are written to one Arrow file. If standard input is closed without it, the parent has died, and the driver exits.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from compat.spark.environment import FINISH
from compat.spark.session import start_session

LOOK_S = 0.2


def main() -> None:
    """Stream until killed, or until `finish`."""
    finishing = threading.Event()
    threading.Thread(target=listen, args=(finishing,), daemon=True).start()
    job = json.loads(sys.argv[1])
    directory = Path(job["directory"])
    spark = start_session(directory)
    source = {
        "kafka.bootstrap.servers": job["servers"],
        "subscribe": job["topic"],
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(job["at_once"]),
    }
    stream = spark.readStream.format("kafka").options(**source).load()
    to_files = stream.writeStream.format("parquet").option("path", str(directory / "rows"))
    copied = stream.selectExpr("key", "value", "partition", f"'{job['target']}' AS topic")
    to_topic = copied.writeStream.format("kafka").option("kafka.bootstrap.servers", job["servers"])
    queries = [
        start(to_files, directory / "files-checkpoint"),
        start(to_topic, directory / "topic-checkpoint"),
    ]
    while not finishing.wait(LOOK_S):
        for query in queries:
            if not query.isActive:
                raise query.exception() or RuntimeError("a stream without an end has ended")
    for query in queries:
        query.processAllAvailable()
        query.stop()
    dump(spark, directory)


def listen(finishing: threading.Event) -> None:
    """Wait for the line `finish`. Exit if standard input is closed before it."""
    said = b""
    while not said.endswith(FINISH):
        more = os.read(sys.stdin.fileno(), 100)
        if not more:
            os._exit(1)
        said += more
    finishing.set()


def start(writer: DataStreamWriter, checkpoint: Path) -> StreamingQuery:
    """Start one query."""
    return writer.option("checkpointLocation", str(checkpoint)).start()


def dump(spark: SparkSession, directory: Path) -> None:
    """Write the rows of the files to one Arrow file."""
    columns = ["partition", "offset", "unix_millis(timestamp) AS time", "key", "value"]
    table = spark.read.parquet(str(directory / "rows")).selectExpr(*columns).toArrow()
    with pa.OSFile(str(directory / "rows.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


if __name__ == "__main__":
    main()
