"""The identity files: `meta.properties` of a log directory and `partition.metadata` of a partition directory.

Source  MetaProperties, PartitionMetadataFile of Apache Kafka 4.3.1
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Final

from wire.types import uuid_from_text, uuid_to_text

META_PROPERTIES: Final = "meta.properties"
PARTITION_METADATA: Final = "partition.metadata"


@dataclass(frozen=True, slots=True)
class DirectoryIdentity:
    """The contents of `meta.properties`."""

    cluster_id: str
    node_id: int
    directory_id: uuid.UUID


def format_identity(identity: DirectoryIdentity) -> str:
    return (
        f"version=1\ncluster.id={identity.cluster_id}\nnode.id={identity.node_id}\n"
        f"directory.id={uuid_to_text(identity.directory_id)}\n"
    )


def parse_identity(text: str) -> DirectoryIdentity:
    """Parse the text of a `meta.properties` file of kbroker or Apache Kafka; ValueError if it is malformed."""
    values = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith(("#", "!")):
            key, _, value = line.partition("=")
            values[key.strip()] = value.strip()
    try:
        if values["version"] != "1":
            raise ValueError(f"version {values['version']}, expected 1")
        return DirectoryIdentity(values["cluster.id"], int(values["node.id"]), uuid_from_text(values["directory.id"]))
    except KeyError as error:
        raise ValueError(f"no {error.args[0]}") from error


def format_partition_metadata(topic_id: uuid.UUID) -> str:
    return f"version: 0\ntopic_id: {uuid_to_text(topic_id)}"


def parse_partition_metadata(text: str) -> uuid.UUID:
    """Parse the text of `partition.metadata` into the topic id; ValueError if it is malformed."""
    values = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
    if values.get("version") != "0":
        raise ValueError(f"version {values.get('version')}, expected 0")
    return uuid_from_text(values.get("topic_id", ""))
