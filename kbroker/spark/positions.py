"""Where reading begins and ends, and offsets in the format of the Kafka source.

    {"orders": {"0": 23, "1": -2}}      offsets or times by topic and partition; -2 is earliest, -1 latest
    {"orders": [0, 1]}                  partitions

The offsets of a stream also contain the topic ids, under a key that cannot be a topic's name: a topic that was deleted
and created again has other records at the same offsets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias
from uuid import UUID

from wire.types import uuid_from_text, uuid_to_text

Partition: TypeAlias = tuple[str, int]
Offsets: TypeAlias = dict[Partition, int]

IDS: Final = "topic ids"
"""The key for the topic ids in the offsets of a stream."""


class Edge(Enum):
    """An end of a partition's log."""

    EARLIEST = "earliest"
    LATEST = "latest"


@dataclass(frozen=True, slots=True)
class AtOffsets:
    """An offset, or an end of the log, for each partition."""

    offsets: Mapping[Partition, int | Edge]


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """In each partition the first offset whose record is at or after this time. Units: milliseconds since 1970."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class AtTimestamps:
    """The same, with a time for each partition."""

    timestamps_ms: Mapping[Partition, int]


Position: TypeAlias = Edge | AtOffsets | AtTimestamp | AtTimestamps


class MalformedPositions(ValueError):
    """Text that does not describe positions."""


def parse_positions(text: str) -> Offsets:
    """Errors: MalformedPositions."""
    found: Offsets = {}
    for topic, partitions in _document(text).items():
        if topic == IDS:
            continue
        if not isinstance(partitions, dict):
            raise MalformedPositions(f"topic {topic!r} does not map partitions to numbers")
        for partition, number in partitions.items():
            if not partition.isascii() or not partition.isdigit():
                raise MalformedPositions(f"topic {topic!r} has a partition {partition!r}")
            if not isinstance(number, int) or isinstance(number, bool) or not -(1 << 63) <= number < 1 << 63:
                raise MalformedPositions(f"{topic}-{partition} has {number!r}, which is not a whole number")
            found[topic, int(partition)] = number
    return found


def parse_assignment(text: str) -> tuple[Partition, ...]:
    """Errors: MalformedPositions."""
    found: dict[Partition, None] = {}
    for topic, partitions in _document(text).items():
        if not isinstance(partitions, list) or not all(type(one) is int and one >= 0 for one in partitions):
            raise MalformedPositions(f"topic {topic!r} has no list of partitions")
        found |= {(topic, partition): None for partition in partitions}
    if not found:
        raise MalformedPositions("no partition")
    return tuple(found)


def _document(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedPositions(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise MalformedPositions("not a JSON object")
    return document


# --- a stream's offsets -----------------------------------------------------------------------------------------------


def to_document(offsets: Mapping[Partition, int], ids: Mapping[str, UUID]) -> dict[str, Any]:
    """The offsets as stored in a stream's checkpoint."""
    document: dict[str, Any] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        document.setdefault(topic, {})[str(partition)] = offset
    document[IDS] = {topic: uuid_to_text(ids[topic]) for topic in document if topic in ids}
    return document


def from_document(document: dict[str, Any]) -> tuple[Offsets, dict[str, UUID]]:
    """The offsets, and the topic ids if there are any. Errors: MalformedPositions."""
    ids = document.get(IDS, {})
    try:
        known = {str(topic): uuid_from_text(text) for topic, text in ids.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise MalformedPositions(f"ids of topics: {error}") from error
    return parse_positions(json.dumps(document)), known
