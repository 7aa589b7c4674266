"""The partition that Kafka's clients choose for a key.

Source  Utils.murmur2 and BuiltInPartitioner of Apache Kafka 4.3.1
"""

from __future__ import annotations

from typing import Final

_INT32: Final = 0xFFFF_FFFF


def partition_of_key(key: bytes, partition_count: int) -> int:
    """The partition of a record's key."""
    return (murmur2(key) & 0x7FFF_FFFF) % partition_count


def murmur2(data: bytes) -> int:
    """Kafka's murmur2, as an unsigned 32-bit number."""
    mix = 0x5BD1_E995
    value = (0x9747_B28C ^ len(data)) & _INT32
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * mix & _INT32
        word = (word ^ (word >> 24)) * mix & _INT32
        value = (value * mix & _INT32) ^ word
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * mix & _INT32
    value = (value ^ (value >> 13)) * mix & _INT32
    return value ^ (value >> 15)
