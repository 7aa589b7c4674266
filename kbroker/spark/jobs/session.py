"""What jobs set in a session that may be somebody else's, as long as they need it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark's own bound is 256 MiB, of which a task would hold several copies where records are large.
SMALL_BATCHES: Final = {"spark.sql.execution.arrow.maxBytesPerBatch": str(8 << 20)}
ATTEMPTS: Final = 3


@contextmanager
def afterwards(tidy: Callable[[], object]) -> Iterator[None]:
    """Calls `tidy` at the end, which asks the JVM something and may be called again.

    Behind a failure or an interruption that is tried some times, and what goes wrong with it is nobody's news: py4j now
    and then refuses the first call behind one that was interrupted, and would hide that it was.
    """
    from py4j.protocol import Py4JError  # noqa: PLC0415  (comes with PySpark)
    from pyspark.errors import PySparkException  # noqa: PLC0415

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
    """The session's settings, put back afterwards."""
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
