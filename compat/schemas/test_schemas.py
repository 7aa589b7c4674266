"""wire's declarations against the schemas in Apache Kafka's jars (KBROKER_KAFKA_LIBS names their directory)."""

import os
from pathlib import Path

import pytest

from compat.schemas.check import check


def test_every_declaration_agrees_with_kafkas_schema_in_every_version() -> None:
    libs = os.environ.get("KBROKER_KAFKA_LIBS")
    if libs is None:
        pytest.skip("KBROKER_KAFKA_LIBS does not name the directory of Kafka's jars")
    differences, summary = check(Path(libs))
    assert not differences, "\n".join(map(str, differences))
    assert not summary.startswith("0 "), summary
