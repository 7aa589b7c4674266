"""The actions of `kbroker topic`, and how they print topics: tables on a terminal, Kafka's lines elsewhere, or JSON."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from kbroker.cli import CommandFailed
from kbroker.cli._admin import confirm
from kbroker.cli._groups import nearest_topic
from kbroker.cli._say import note, say, say_json
from kbroker.cli._table import is_terminal, print_table
from kbroker.cli._topics import (
    FILTERS,
    PartitionState,
    TopicState,
    add_partitions,
    controller_epoch,
    create_topic,
    delete_topics,
    describe_topics,
    id_text,
    is_internal,
    matching_topics,
)
from kbroker.client.cluster import Cluster

COLLISION_WARNING: Final = (
    "WARNING: Due to limitations in metric names, topics with a period ('.') or underscore ('_') could collide. To "
    "avoid issues it is best to use either, but not both."
)
ZOOKEEPER_STATE_VERSION: Final = 1
"""The only version of ZooKeeper's format of the partition state."""


def _create(client: Cluster, options: argparse.Namespace) -> None:
    if "." in options.topic or "_" in options.topic:
        note(COLLISION_WARNING)
    is_created = create_topic(
        client,
        options.topic,
        partitions=options.partitions,
        replication_factor=options.replication_factor,
        assignment=options.replica_assignment or [],
        configs=dict(options.config or []),
        if_not_exists=options.if_not_exists,
    )
    if options.format == "json":
        say_json({"topic": options.topic, "is_created": is_created})
    elif is_created:
        say(f"Created topic {options.topic}.")


def _existing(client: Cluster, options: argparse.Namespace) -> list[Any]:
    """The topics that match. Raises CommandFailed if no topic matches, unless --if-exists is given."""
    topics = matching_topics(client, options.topic, exclude_internal=options.exclude_internal)
    if options.topic and not topics and not options.if_exists:
        hint = nearest_topic(client, options.topic)
        raise CommandFailed(f"Topic '{options.topic}' does not exist as expected{hint}")
    return topics


def _to_change(client: Cluster, options: argparse.Namespace) -> list[Any]:
    """The topics that match; internal topics only if they are named exactly."""
    topics = _existing(client, options)
    named = options.topic.split(",")
    kept = [topic for topic in topics if is_internal(topic) and topic.name not in named]
    if kept:
        why = f"skipping internal topics that are not named exactly: {', '.join(topic.name for topic in kept)}"
        if len(kept) == len(topics):
            raise CommandFailed(why)
        note(f"WARNING: {why}")
    return [topic for topic in topics if topic not in kept]


def _delete(client: Cluster, options: argparse.Namespace) -> None:
    names = [str(topic.name) for topic in _to_change(client, options)]
    if not set(names) <= set(options.topic.split(",")):
        confirm(f"Delete these {len(names)} topics with their records?", names, is_agreed=options.yes)
    delete_topics(client, names)
    if options.format == "json":
        say_json({"deleted": names})


def _alter(client: Cluster, options: argparse.Namespace) -> None:
    topics = _to_change(client, options)
    add_partitions(client, topics, options.partitions, options.replica_assignment or [])
    if options.format == "json":
        names = [topic.name for topic in topics]
        say_json({"altered": names, "partition_count": options.partitions})


def _list(client: Cluster, options: argparse.Namespace) -> None:
    topics = matching_topics(client, options.topic, exclude_internal=options.exclude_internal)
    if options.format == "json":
        say_json([topic.name for topic in topics])
    else:
        for topic in topics:
            say(topic.name)


def _describe(client: Cluster, options: argparse.Namespace) -> None:
    if options.topic_id:
        topics = [topic for topic in client.metadata(None).topics if id_text(topic.topic_id) == options.topic_id]
        if not topics and not options.if_exists:
            raise CommandFailed(f"TopicId '{options.topic_id}' does not exist as expected")
    else:
        topics = _existing(client, options)
    filters = [shows for name, shows in FILTERS.items() if getattr(options, name)]
    described = []
    for topic in describe_topics(client, [str(topic.name) for topic in topics]):
        if topic.changed_settings or not options.topics_with_overrides:
            partitions = [
                each
                for each in topic.partitions
                if not filters or any(shows(topic, each, client.nodes) for shows in filters)
            ]
            described.append((topic, partitions))
    if options.format == "json":
        epoch = controller_epoch(client)
        say_json([_as_json(topic, partitions, epoch) for topic, partitions in described])
        return
    for topic, partitions in described:
        shown = [] if options.topics_with_overrides else partitions
        if is_terminal():
            if shown or not filters:
                _draw(topic, shown)
            continue
        if not filters:
            say(_topic_line(topic))
        for partition in shown:
            say(_partition_line(topic.name, partition))


def _topic_line(topic: TopicState) -> str:
    parts = [f"Topic: {topic.name}"]
    if topic.topic_id is not None:
        parts.append(f"TopicId: {topic.topic_id}")
    configs = ",".join(f"{name}={value}" for name, value in topic.changed_settings.items())
    parts += [f"PartitionCount: {len(topic.partitions)}", f"ReplicationFactor: {topic.replication_factor}"]
    return "\t".join([*parts, f"Configs: {configs}"])


def _partition_line(topic: str, partition: PartitionState) -> str:
    parts = [f"Topic: {topic}", f"Partition: {partition.partition}", f"Leader: {_leader(partition)}"]
    parts += [f"Replicas: {_ids(partition.replicas)}", f"Isr: {_ids(partition.isr)}"]
    adding, removing = partition.adding_replicas, partition.removing_replicas
    if adding or removing:
        parts += [f"Adding Replicas: {_ids(adding)}", f"Removing Replicas: {_ids(removing)}"]
    parts += [f"Elr: {_ids(partition.eligible_leader_replicas)}", f"LastKnownElr: {_ids(partition.last_known_elr)}"]
    return "\t" + "\t".join(parts)


def _leader(partition: PartitionState) -> int | str:
    return "none" if partition.leader < 0 else partition.leader


def _ids(ids: Sequence[int] | None) -> str:
    return "N/A" if ids is None else ",".join(map(str, ids))


def _draw(topic: TopicState, partitions: Iterable[PartitionState]) -> None:
    title = f"{topic.name}  {topic.topic_id or ''}  replication factor {topic.replication_factor}"
    changed = "".join(f"\n{name}={value}" for name, value in topic.changed_settings.items())
    rows = [
        (
            each.partition,
            _leader(each),
            each.leader_epoch,
            _ids(each.replicas),
            _ids(each.isr),
            _ids(each.eligible_leader_replicas),
        )
        for each in partitions
    ]
    print_table(title + changed, ("partition", "leader", "leader epoch", "replicas", "in sync", "eligible"), rows)


def _as_json(topic: TopicState, partitions: Iterable[PartitionState], epoch: int | None) -> dict[str, Any]:
    """A topic. Each partition begins with the five fields of ZooKeeper's partition state."""
    return {
        "topic": topic.name,
        "topic_id": topic.topic_id,
        "is_internal": topic.is_internal,
        "partition_count": len(topic.partitions),
        "replication_factor": topic.replication_factor,
        "configs": topic.changed_settings,
        "partitions": [
            {
                "partition": each.partition,
                "controller_epoch": epoch,
                "leader": each.leader,
                "version": ZOOKEEPER_STATE_VERSION,
                **asdict(each),
            }
            for each in partitions
        ],
    }


ACTIONS: Final[Mapping[str, Callable[[Cluster, argparse.Namespace], None]]] = {
    "create": _create,
    "delete": _delete,
    "alter": _alter,
    "list": _list,
    "describe": _describe,
}
