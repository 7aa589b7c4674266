"""Splits a request into the partitions that exist and those that do not, or that the client may not use."""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Any, TypeVar

from kbroker.metadata.image import Image
from wire.errors import ErrorCode

Topic = TypeVar("Topic", bound=Any)


def known_partitions(
    topics: Iterable[Topic], image: Image, *, denied: Set[str]
) -> tuple[list[Topic], dict[str, list[int]]]:
    """The topics, with their existing partitions each once, and the indexes of the others by topic name. The others are
    also those of topics that are denied to the client (see `why_refused`).

    Shape  a topic has a name and partitions, and a partition has a partition_index; of duplicates, the last one counts
    """
    known: list[Topic] = []
    unknown: dict[str, list[int]] = {}
    for topic in topics:
        found = image.topics_by_name.get(topic.name)
        indexes = () if found is None or topic.name in denied else found.partitions
        asked = {one.partition_index: one for one in topic.partitions}
        if missing := [index for index in asked if index not in indexes]:
            unknown.setdefault(topic.name, []).extend(missing)
        topic.partitions = [one for index, one in asked.items() if index in indexes]
        if topic.partitions:
            known.append(topic)
    return known, unknown


def why_refused(topic: str, denied: Set[str]) -> ErrorCode:
    """The error code of the partitions of a topic that `known_partitions` left out."""
    return ErrorCode.TOPIC_AUTHORIZATION_FAILED if topic in denied else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
