"""Our bytes equal those of Apache Kafka 4.3.1's own classes, for two values of every class in every version.

`python -m compat.schemas.golden`, which runs Kafka's classes, writes the fixtures.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from compat.schemas.filler import full, sparse
from compat.schemas.golden import BYTES, CHECKSUMS, REWRITTEN, cases, fixture_line, rewritings
from tests.wire.generated import declared_classes
from wire.codec import decode, encode

FIXTURES = Path(__file__).with_name("fixtures")
FILLINGS = {"full": full, "sparse": sparse}
CLASSES = {cls.__name__: cls for cls in declared_classes()}


def test_lengths_and_checksums_of_all_encodings_equal_kafkas() -> None:
    kafka = (FIXTURES / CHECKSUMS).read_text().splitlines()
    ours = [fixture_line(cls, version, filling, encode(value, version)) for cls, version, filling, value in cases()]
    assert len(ours) > 1000
    assert [line for line in ours if line not in set(kafka)] == []
    assert len(kafka) == len(ours)


@pytest.mark.parametrize("line", (FIXTURES / BYTES).read_text().splitlines(), ids=lambda line: line.rsplit(" ", 1)[0])
def test_bytes_of_kafkas_classes_are_decoded_and_encoded(line: str) -> None:
    name, version, filling, data = line.split()
    cls = CLASSES[name]
    value = FILLINGS[filling](cls, int(version))
    assert decode(cls, int(version), bytes.fromhex(data), exact=True) == value
    assert encode(value, int(version)).hex() == data


@pytest.mark.parametrize("line", (FIXTURES / REWRITTEN).read_text().splitlines(), ids=lambda line: line[:60])
def test_a_stored_record_is_rewritten_as_kafka_rewrites_it(line: str) -> None:
    name, version, read, written = line.split()
    value = decode(CLASSES[name], int(version), bytes.fromhex(read), exact=True)
    assert encode(value, int(version)).hex() == written


def test_undeclared_tags_stay_in_stored_records() -> None:
    for cls, version, data in rewritings():
        value = decode(cls, version, data, exact=True)
        again = encode(value, version)
        assert decode(cls, version, again, exact=True) == value
        if hasattr(value, "unknown_tagged_fields"):
            assert again == data
            assert "tag 70000=<200 bytes>" in repr(value)
            del value.unknown_tagged_fields
            assert decode(cls, version, again, exact=True) != value
