"""What a job tidies up in a session, whatever became of the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from py4j.protocol import Py4JNetworkError

from kbroker.spark.jobs.session import afterwards, session_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SET, NOT_SET = "spark.sql.shuffle.partitions", "spark.sql.execution.arrow.maxBytesPerBatch"


class Refused:
    """A call that py4j refuses so many times."""

    def __init__(self, times: int) -> None:
        self.left = times
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        if self.left > 0:
            self.left -= 1
            raise Py4JNetworkError("Answer from Java side is empty")


def test_tidying_happens_once_where_all_is_well() -> None:
    tidy = Refused(0)
    with afterwards(tidy):
        assert tidy.calls == 0
    assert tidy.calls == 1


def test_a_refusal_is_told_where_nothing_else_is_wrong() -> None:
    with pytest.raises(Py4JNetworkError), afterwards(Refused(1)):
        pass


@pytest.mark.parametrize("reason", [KeyboardInterrupt, ValueError])
@pytest.mark.parametrize(("refusals", "calls"), [(0, 1), (1, 2), (9, 3)])
def test_a_refusal_hides_no_reason(reason: type[BaseException], refusals: int, calls: int) -> None:
    tidy = Refused(refusals)
    with pytest.raises(reason), afterwards(tidy):
        raise reason
    assert tidy.calls == calls


def test_settings_are_put_back_behind_an_interruption(spark: SparkSession) -> None:
    before = spark.conf.get(SET), spark.conf.get(NOT_SET, None)

    def interrupted() -> None:
        with session_settings(spark, {SET: "7", NOT_SET: "12345"}):
            assert (spark.conf.get(SET), spark.conf.get(NOT_SET)) == ("7", "12345")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (spark.conf.get(SET), spark.conf.get(NOT_SET, None)) == before
