"""A driver that is there to be killed: `python -m compat.spark.stream_job '{"servers": ..., "topic": ..., ...}'`.

One stream goes from a topic to Parquet files, exactly once, and one to another topic, at least once. With `finish` both
take what is there and end; then the rows of the files, as Spark sees them, go to one Arrow file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming import DataStreamWriter

from compat.spark.session import start_session


def main() -> None:
    """Stream until killed, or to the end."""
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
        start(to_files, directory / "files-checkpoint", finish=job["finish"]),
        start(to_topic, directory / "topic-checkpoint", finish=job["finish"]),
    ]
    if not job["finish"]:
        spark.streams.awaitAnyTermination()
        raise RuntimeError("a stream without an end has ended")
    for query in queries:
        query.awaitTermination()
    dump(spark, directory)


def start(writer: DataStreamWriter, checkpoint: Path, *, finish: bool):
    """Start one query."""
    writer = writer.option("checkpointLocation", str(checkpoint))
    return (writer.trigger(availableNow=True) if finish else writer).start()


def dump(spark: SparkSession, directory: Path) -> None:
    """Write down what the files hold."""
    columns = ["partition", "offset", "unix_millis(timestamp) AS time", "key", "value"]
    table = spark.read.parquet(str(directory / "rows")).selectExpr(*columns).toArrow()
    with pa.OSFile(str(directory / "rows.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)


if __name__ == "__main__":
    main()
