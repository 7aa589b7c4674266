"""Spark over SASL_SSL: the stock connector and `format("kbroker")`. Plans, logs and errors hide the password."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from subprocess import run

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from compat import secured
from compat.authority import make_authority
from compat.kafka.libraries import executable
from compat.secured import PASSWORD, Secured
from compat.spark.source import fails

TOPIC, COUNT = "secured", 100
STORE_PASSWORD, STORE_KEY = "changeit", "canary-of-the-object-store"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured.started(tmp_path_factory.mktemp("secured")) as made:
        yield made


def options(broker: Secured, *, password: str = PASSWORD) -> dict[str, str]:
    """The same options for both sources."""
    java = {"bootstrap.servers": broker.bootstrap_servers, **broker.java(password=password)}
    return {f"kafka.{name}": value for name, value in java.items()}


def with_pkcs12(broker: Secured, given: Mapping[str, str]) -> dict[str, str]:
    """Options whose trust store is a PKCS12 file."""
    path = broker.directory / "trust.p12"
    if not path.exists():
        keytool = executable("keytool", hint="install a JDK")
        command = [keytool, "-importcert", "-noprompt", "-alias", "ca", "-file", str(broker.authority)]
        run([*command, "-keystore", str(path), "-storetype", "PKCS12", "-storepass", STORE_PASSWORD], check=True)
    store = {"location": str(path), "type": "PKCS12", "password": STORE_PASSWORD}
    return {**given, **{f"kafka.ssl.truststore.{name}": value for name, value in store.items()}}


def values(frame: DataFrame) -> list[int]:
    return sorted(int(row.value) for row in frame.selectExpr("CAST(value AS STRING) AS value").collect())


@pytest.fixture(scope="module")
def written(spark: SparkSession, broker: Secured) -> dict[str, str]:
    """The options after the stock connector, with a PKCS12 trust store, has written the topic."""
    given = options(broker)
    frame = spark.range(COUNT).selectExpr("CAST(id AS STRING) AS value")
    frame.write.format("kafka").options(**with_pkcs12(broker, given)).option("topic", TOPIC).save()
    return given


@pytest.mark.parametrize("source", ["kafka", "kbroker"])
def test_a_batch_reads_everything(spark: SparkSession, written: dict[str, str], source: str) -> None:
    given = {**written, "subscribe": TOPIC, "startingOffsets": "earliest"}
    assert values(spark.read.format(source).options(**given).load()) == list(range(COUNT))


@pytest.mark.parametrize("source", ["kafka", "kbroker"])
def test_a_stream_reads_everything(spark: SparkSession, written: dict[str, str], source: str, tmp_path: Path) -> None:
    given = {**written, "subscribe": TOPIC, "startingOffsets": "earliest"}
    found: list[int] = []
    query = (
        spark.readStream.format(source)
        .options(**given)
        .load()
        .writeStream.foreachBatch(lambda frame, _: found.extend(values(frame)))
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    assert sorted(found) == list(range(COUNT))


def test_secrets_are_in_no_plan_or_event(spark: SparkSession, written: dict[str, str], event_log: Path) -> None:
    """What Spark and our source show to readers of logs and of the history server."""
    given = {**written, "subscribe": TOPIC, "startingOffsets": "earliest", "rsm.config.secret.key": STORE_KEY}
    frame = spark.read.format("kbroker").options(**given).load().selectExpr("upper(CAST(value AS STRING)) AS value")
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        for mode in ("simple", "extended", "codegen", "cost", "formatted"):
            frame.explain(mode=mode)
    frame.createOrReplaceTempView("secured")
    spark.sql("SELECT count(*) FROM secured").collect()
    print(frame, frame._jdf.queryExecution().toString(), file=shown)
    files = [path for path in event_log.rglob("*") if path.is_file()]
    text = shown.getvalue() + "".join(path.read_text(errors="replace") for path in files)
    assert "kbroker" in shown.getvalue()
    assert any("SparkListenerSQLExecutionStart" in path.read_text(errors="replace") for path in files)
    assert [secret for secret in (PASSWORD, STORE_KEY) if secret in text] == []


def test_a_wrong_password_and_a_foreign_authority_are_named(
    spark: SparkSession, broker: Secured, written: dict[str, str], tmp_path: Path
) -> None:
    given = {**options(broker, password="a guess"), "subscribe": TOPIC}
    with fails("invalid credentials with SASL mechanism SCRAM-SHA-512"):
        spark.read.format("kbroker").options(**given).load().collect()
    (tmp_path / "authority").mkdir()
    foreign = make_authority(tmp_path / "authority") / "ca.pem"
    given = {**written, "subscribe": TOPIC, "kafka.ssl.truststore.location": str(foreign)}
    with fails("certificate"):
        spark.read.format("kbroker").options(**given).load().collect()
    with pytest.raises(PySparkException) as raised:
        spark.read.format("kbroker").options(**with_pkcs12(broker, written), subscribe=TOPIC).load().collect()
    assert "clients read only PEM files, not PKCS12" in str(raised.value)
    assert STORE_PASSWORD not in str(raised.value)
