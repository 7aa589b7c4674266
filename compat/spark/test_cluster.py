"""Jobs on a cluster, by `--master`: Spark's standalone master and a worker, whose executors are separate processes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark
import pytest

from compat.brokers import end
from compat.clients.samples import Sample, samples
from compat.spark.jobs import TIERED, as_sample, exported, fill, flags
from compat.spark.session import SHORT_LIVED
from compat.tiered.site import LATEST_TIERED, Site, Sites
from compat.waiting import until

HOME = Path(pyspark.__file__).parent
START_S = 120.0
COUNT = 400


@contextmanager
def running(log: Path, main_class: str, *words: str, ready: str) -> Iterator[str]:
    """Run one of Spark's servers on loopback during the block. Yields the text after `ready` in its log."""
    options = {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED}
    command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{main_class}", "--host", "127.0.0.1"]
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*command, "--webui-port", "0", *words],
            stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            env={**os.environ, **options, "SPARK_HOME": str(HOME), "PYSPARK_PYTHON": sys.executable},
        )  # fmt: skip

    def announced() -> str | None:
        text = log.read_text()
        assert process.poll() is None, text
        found = re.search(f"{re.escape(ready)}(.*)\n", text)
        return None if found is None else found[1]

    try:
        until(lambda: announced() is not None, patience_s=START_S)
        yield announced() or ""
        assert process.poll() is None, log.read_text()
    except AssertionError as error:
        error.add_note(log.read_text())
        raise
    finally:
        end(process, timeout_s=30)


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The address of a cluster with one worker of two cores."""
    work = ("-d", str(tmp_path / "work"), "--cores", "2", "--memory", "1g")
    with (
        running(tmp_path / "master.log", "master.Master", "--port", "0", ready="Starting Spark master at ") as address,
        running(tmp_path / "worker.log", "worker.Worker", *work, address, ready="Successfully registered with master "),
    ):
        yield address


@pytest.fixture
def topic(tiered_site: Site, new_topic_name: Callable[[str], str]) -> Iterator[tuple[str, list[Sample]]]:
    """A topic with some records in the tier, and the others only on the broker."""
    name, records = new_topic_name("clustered"), samples(COUNT, seed=7, null_headers=False)
    tiered_site.create(name, TIERED)
    fill(tiered_site, name, records)
    Sites([tiered_site]).expect(lambda site: site.offset(name, LATEST_TIERED)[1] > COUNT // 4, True)
    yield name, records
    tiered_site.delete_topic(name)


SETTINGS = {
    "spark.driver.extraJavaOptions": SHORT_LIVED,
    "spark.executor.extraJavaOptions": SHORT_LIVED,
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}
PROGRAM = """
import json, sys
from pyspark.sql import SparkSession

master, settings, options = json.loads(sys.argv[1])
builder = SparkSession.builder.master(master)
for key, value in settings.items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
rows = spark.read.format("kbroker").options(**options).schema("offset BIGINT, value BINARY").load().collect()
print(json.dumps([[row.offset, None if row.value is None else row.value.hex()] for row in rows]))
spark.stop()
"""


def run(words: Sequence[str]) -> str:
    """The output of a driver that runs here and uses the cluster."""
    done = subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": sys.executable},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def executors_worked(directory: Path) -> bool:
    """Check that tasks ran in the worker's executors."""
    return any("Finished task" in log.read_text() for log in directory.glob("work/app-*/*/stderr"))


def test_the_source_runs_in_the_executors_of_a_cluster(
    master: str, tiered_site: Site, topic: tuple[str, list[Sample]], tmp_path: Path
) -> None:
    name, records = topic
    options = {
        "kafka.bootstrap.servers": tiered_site.address, "subscribe": name,
        "rsm.config.dir": str(tiered_site.tier_directory),
    }  # fmt: skip
    printed = run(["-c", PROGRAM, json.dumps([master, SETTINGS, options])])
    assert sorted(map(tuple, json.loads(printed.splitlines()[-1]))) == [
        (offset, None if record.value is None else record.value.hex()) for offset, record in enumerate(records)
    ]
    assert executors_worked(tmp_path)


def test_an_export_runs_in_the_executors_of_a_cluster(
    master: str, tiered_site: Site, topic: tuple[str, list[Sample]], tmp_path: Path
) -> None:
    name, records = topic
    words = [word for key, value in SETTINGS.items() for word in ("--conf", f"{key}={value}")]
    out = tmp_path / "out"
    run(
        [
            "-m",
            "kbroker",
            "spark",
            "export",
            "-t",
            name,
            "-o",
            str(out),
            *flags(tiered_site),
            "--master",
            master,
            *words,
        ]
    )
    assert [as_sample(row) for row in exported(out)] == records
    assert executors_worked(tmp_path)
