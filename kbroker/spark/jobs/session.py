"""Changes settings of a session, which may belong to the caller, for the duration of a job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

# Spark's default is 256 MiB. A task with large records would hold several copies of that.
SMALL_BATCHES: Final = {"spark.sql.execution.arrow.maxBytesPerBatch": str(8 << 20)}
ATTEMPTS: Final = 3


@contextmanager
def afterwards(tidy: Callable[[], object]) -> Iterator[None]:
    """Call `tidy` at the end. It calls the JVM and must be repeatable.

    After an exception `tidy` is tried several times, and its own errors are ignored: py4j sometimes refuses the first
    call after an interrupted one, and that error would hide the interruption.
    """
    try:
        yield
    except BaseException:
        for _ in range(ATTEMPTS):
            try:
                tidy()
            except (PySparkException, Py4JError, OSError):
                continue
            break
        raise
    tidy()


@contextmanager
def session_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Set the session's settings, and restore them afterwards."""
    before = [(name, spark.conf.get(name, None)) for name in settings]

    def put_back() -> None:
        for name, old in before:
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)

    with afterwards(put_back):
        for name, value in settings.items():
            spark.conf.set(name, value)
        yield
