"""The partition of a key."""

from __future__ import annotations

import pytest

from wire.partitioner import murmur2


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"21", -973932308), (b"foobar", -790332482)],  # Kafka's own vectors
)
def test_murmur2_is_kafkas(data: bytes, expected: int) -> None:
    assert murmur2(data) == expected & 0xFFFF_FFFF
