"""A driver that is there to be killed: `python -m compat.spark.stream_job '{"servers": ..., "topic": ..., ...}'`.

One stream goes from a topic to Parquet files, exactly once, and one to another topic, at least once. When `finish` is
said on the standard input both take what is there and end; then the rows of the files, as Spark sees them, go to one
Arrow file. Where the standard input just ends, whoever started this is gone, and so is this.
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
    """Stream until killed, or until told to finish."""
    told = threading.Event()
    threading.Thread(target=listen, args=(told,), daemon=True).start()
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
    while not told.wait(LOOK_S):
        for query in queries:
            if not query.isActive:
                raise query.exception() or RuntimeError("a stream without an end has ended")
    for query in queries:
        query.processAllAvailable()
        query.stop()
    dump(spark, directory)


def listen(told: threading.Event) -> None:
    """Wait for the word, or for the end of whoever would say it."""
    said = b""
    while not said.endswith(FINISH):
        more = os.read(sys.stdin.fileno(), 100)
        if not more:
            os._exit(1)
        said += more
    told.set()


def start(writer: DataStreamWriter, checkpoint: Path) -> StreamingQuery:
    """Start one query."""
    return writer.option("checkpointLocation", str(checkpoint)).start()


def dump(spark: SparkSession, directory: Path) -> None:
    """Write down what the files hold."""
    columns = ["partition", "offset", "unix_millis(timestamp) AS time", "key", "value"]
    table = spark.read.parquet(str(directory / "rows")).selectExpr(*columns).toArrow()
    with pa.OSFile(str(directory / "rows.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


if __name__ == "__main__":
    main()
