"""What jobs set in a session that may be somebody else's, as long as they need it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Spark's own bound is 256 MiB, of which a task would hold several copies where records are large.
SMALL_BATCHES: Final = {"spark.sql.execution.arrow.maxBytesPerBatch": str(8 << 20)}


@contextmanager
def session_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """The session's settings, put back afterwards."""
    before = [(name, spark.conf.get(name, None)) for name in settings]
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before:
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)
