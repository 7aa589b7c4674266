"""wire's declarations against the schemas in Apache Kafka's jars."""

from pathlib import Path

from compat.schemas.check import check


def test_every_declaration_agrees_with_kafkas_schema_in_every_version(kafka_libraries: Path) -> None:
    differences, summary = check(kafka_libraries)
    assert not differences, "\n".join(map(str, differences))
    assert not summary.startswith("0 "), summary
