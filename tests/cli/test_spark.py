"""`kbroker spark` without Spark: help and usage errors need no imports, and the message says how to install PySpark."""

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
        ([*EXPORT, "--decode", "json"], "--decode and --schema must be used together"),
        ([*EXPORT, "--into", "x"], "--into requires --decode json or csv or avro"),
        ([*EXPORT, *JSON, "--confluent-header"], "--confluent-header requires --decode avro"),
        ([*EXPORT, *JSON, "--schema-id", "7"], "--schema-id requires --decode avro"),
        ([*EXPORT, *JSON, "--csv-null", "NA"], "--csv-null requires --decode csv"),
        ([*EXPORT, "--csv-delimiter", ";"], "--csv-delimiter requires --decode csv"),
        ([*EXPORT, "--decode", "csv", "--schema", "a INT", "--refuse-unknown-fields"], "requires --decode json"),
        (
            [*EXPORT, "--decode", "avro", "--schema", "{}", "--schema-id", "7"],
            "--schema-id requires --confluent-header",
        ),
        ([*EXPORT, "--conf", "x"], "'x' is not of the form key=value"),
        (["audit"], "the store is not specified"),
        (["replay", "-t", "a", "--parquet", "b", "--to", "c"], "not allowed with argument"),
        (["replay", "-t", "a", "--to", "c"], "the target is not specified"),
        (["catalog", "--events"], "--events requires --output"),
        (["catalog", "--follow"], "require --events"),
        (["catalog", "--events", "-o", "out", "--all"], "--all cannot be used with --events"),
    ],
)
def test_wrong_usage_is_an_error_before_spark_starts(run: Run, words: list[str], said: str) -> None:
    done = run("spark", *words)
    assert done.code == 2
    assert said in done.err


@pytest.mark.parametrize(
    "words", [["audit", "--config"], ["replay", "-t", "a", "--to", "b", "-b", "localhost:1", "--to-command-config"]]
)
def test_a_missing_settings_file_is_an_error(run: Run, words: list[str]) -> None:
    done = run("spark", *words, "/nowhere/x")
    assert (done.code, done.err) == (1, "kbroker spark: cannot read /nowhere/x: No such file or directory\n")


def test_a_cluster_is_named_by_servers_a_file_or_both(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=a:1\nsasl.mechanism=PLAIN\n")
    assert client_options(None, file) == {"kafka.bootstrap.servers": "a:1", "kafka.sasl.mechanism": "PLAIN"}
    assert client_options(["b:1", "c:2"], file)["kafka.bootstrap.servers"] == "b:1,c:2"
    assert client_options(["b:1"], None) == {"kafka.bootstrap.servers": "b:1"}


def test_only_new_warnings_of_a_log_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file given by --spark-log may contain the log of an earlier job."""
    path = tmp_path / "log"
    path.write_text("orders-0: long ago (failOnDataLoss=false)\n")
    with spark_log(path), path.open("a") as file:
        file.write("WARN Something else\norders-0: offsets 3 to 5 are left out (failOnDataLoss=false): gone\n")
    warning = "kbroker spark: orders-0: offsets 3 to 5 are left out (failOnDataLoss=false): gone\n"
    assert capsys.readouterr().err == warning
    assert path.read_text().startswith("orders-0: long ago")
