"""A job's cleanup in a session, after success and after errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.errors import PySparkRuntimeError

from kbroker.cli._spark_session import stop
from kbroker.spark.jobs.session import afterwards, session_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SET, NOT_SET = "spark.sql.shuffle.partitions", "spark.sql.execution.arrow.maxBytesPerBatch"


REFUSALS = [Py4JNetworkError("Answer from Java side is empty"), PySparkRuntimeError("refused"), ConnectionResetError()]


class Refused:
    """A call that py4j or PySpark refuses a number of times."""

    def __init__(self, times: int, refusal: Exception = REFUSALS[0]) -> None:
        self.refusal = refusal
        self.left = times
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        if self.left > 0:
            self.left -= 1
            raise self.refusal


def test_cleanup_runs_once_without_an_error() -> None:
    tidy = Refused(0)
    with afterwards(tidy):
        assert tidy.calls == 0
    assert tidy.calls == 1


def test_a_refused_cleanup_is_an_error_by_itself() -> None:
    with pytest.raises(Py4JNetworkError), afterwards(Refused(1)):
        pass


@pytest.mark.parametrize("reason", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize(("refusals", "calls"), [(0, 1), (1, 2), (9, 3)])
def test_a_refused_cleanup_does_not_hide_the_first_error(
    reason: type[BaseException], refusal: Exception, refusals: int, calls: int
) -> None:
    tidy = Refused(refusals, refusal)
    with pytest.raises(reason), afterwards(tidy):
        raise reason
    assert tidy.calls == calls


def test_settings_are_restored_after_an_interruption(spark: SparkSession) -> None:
    before = spark.conf.get(SET), spark.conf.get(NOT_SET, None)

    def interrupted() -> None:
        with session_settings(spark, {SET: "7", NOT_SET: "12345"}):
            assert (spark.conf.get(SET), spark.conf.get(NOT_SET)) == ("7", "12345")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (spark.conf.get(SET), spark.conf.get(NOT_SET, None)) == before


class FirstCallRefused:
    """A stand-in for PySpark's session that refuses its first call of the JVM."""

    def __init__(self) -> None:
        self.conf = self
        self.calls = 0
        self.is_stopped = False

    def _call(self) -> None:
        self.calls += 1
        if self.calls == 1:
            raise Py4JNetworkError("Answer from Java side is empty")

    def get(self, _name: str, default: str | None) -> str | None:
        self._call()
        return default

    def stop(self) -> None:
        self._call()
        self.is_stopped = True


def test_a_session_stops_even_if_the_first_call_is_refused() -> None:
    session = FirstCallRefused()
    stop(cast("SparkSession", session))
    assert session.is_stopped


def test_every_session_has_the_setting_that_stop_reads(spark: SparkSession) -> None:
    assert spark.conf.get("spark.app.id", None) == spark.sparkContext.applicationId
