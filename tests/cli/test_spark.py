"""`kbroker spark` without Spark: help and usage cost nothing, and what is missing is said with the remedy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.cli._spark_session import client_options, spark_log
from tests.cli.conftest import Run

JOBS = {
    "export": ["-t", "orders", "-o", "/nowhere/out", "-b", "localhost:1"],
    "audit": ["--override", "rsm.config.dir=/nowhere"],
    "replay": ["-t", "orders", "--to", "copy", "-b", "localhost:1"],
    "catalog": ["-b", "localhost:1"],
}


EXPORT = ["export", "-t", "orders", "-o", "out"]
JSON = ["--decode", "json", "--schema", "a INT"]


@pytest.mark.parametrize("job", JOBS)
def test_without_pyspark_a_job_says_how_to_get_it(run: Run, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    done = run("spark", job, *JOBS[job])
    assert (done.code, done.out) == (1, "")
    assert done.err == "kbroker spark: PySpark is not installed: pip install 'kbroker[spark]'\n"


@pytest.mark.parametrize("job", JOBS)
def test_help_imports_neither_spark_nor_arrow_nor_the_client(job: str) -> None:
    program = (
        "import sys; from kbroker.cli import main\n"
        f"try: main(['spark', '{job}', '--help'])\n"
        "except SystemExit: pass\n"
        "print([name for name in ('pyspark', 'pyarrow', 'numpy', 'kafka', 'trio') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "--master" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["export", "-o", "out"], "-t/--topic"),
        ([*EXPORT, "--decode", "json"], "--decode and --schema belong together"),
        ([*EXPORT, "--into", "x"], "--into is of --decode json or csv or avro"),
        ([*EXPORT, *JSON, "--confluent-header"], "--confluent-header is of --decode avro"),
        ([*EXPORT, *JSON, "--schema-id", "7"], "--schema-id is of --decode avro"),
        ([*EXPORT, *JSON, "--csv-null", "NA"], "--csv-null is of --decode csv"),
        ([*EXPORT, "--csv-delimiter", ";"], "--csv-delimiter is of --decode csv"),
        ([*EXPORT, "--decode", "csv", "--schema", "a INT", "--refuse-unknown-fields"], "is of --decode json"),
        ([*EXPORT, "--decode", "avro", "--schema", "{}", "--schema-id", "7"], "what --confluent-header takes off"),
        ([*EXPORT, "--conf", "x"], "'x' is not of the form key=value"),
        (["audit"], "where is the store?"),
        (["replay", "-t", "a", "--parquet", "b", "--to", "c"], "not allowed with argument"),
        (["replay", "-t", "a", "--to", "c"], "where is the target?"),
        (["catalog", "--events"], "--events needs --output"),
        (["catalog", "--follow"], "are of --events"),
        (["catalog", "--events", "-o", "out", "--all"], "--all is not of --events"),
    ],
)
def test_what_cannot_be_meant_is_told_before_spark_starts(run: Run, words: list[str], said: str) -> None:
    done = run("spark", *words)
    assert done.code == 2
    assert said in done.err


@pytest.mark.parametrize(
    "words", [["audit", "--config"], ["replay", "-t", "a", "--to", "b", "-b", "localhost:1", "--to-command-config"]]
)
def test_a_file_of_settings_that_is_not_there_is_told(run: Run, words: list[str]) -> None:
    done = run("spark", *words, "/nowhere/x")
    assert (done.code, done.err) == (1, "kbroker spark: cannot read /nowhere/x: No such file or directory\n")


def test_a_cluster_is_named_by_servers_a_file_or_both(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=a:1\nsasl.mechanism=PLAIN\n")
    assert client_options(None, file) == {"kafka.bootstrap.servers": "a:1", "kafka.sasl.mechanism": "PLAIN"}
    assert client_options(["b:1", "c:2"], file)["kafka.bootstrap.servers"] == "b:1,c:2"
    assert client_options(["b:1"], None) == {"kafka.bootstrap.servers": "b:1"}


def test_warnings_of_a_log_are_told_that_came_since(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log that was asked for may have those of an earlier job before."""
    path = tmp_path / "log"
    path.write_text("orders-0: long ago (failOnDataLoss=false)\n")
    with spark_log(path), path.open("a") as file:
        file.write("WARN Something else\norders-0: offsets 3 to 5 are left out (failOnDataLoss=false): gone\n")
    told = "kbroker spark: orders-0: offsets 3 to 5 are left out (failOnDataLoss=false): gone\n"
    assert capsys.readouterr().err == told
    assert path.read_text().startswith("orders-0: long ago")
