"""The decisions of kafka-reassign-partitions: plans in JSON, what moves, and which replicas are throttled.

A plan is {"version": 1, "partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", "/d"]}]}.
Its "log_dirs" are optional: a directory for each replica, or "any".

Source  ReassignPartitionsCommand of Apache Kafka 4.3.1
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from kbroker.cli import CommandFailed
from kbroker.client.cluster import Partition
from wire.messages.list_partition_reassignments import OngoingPartitionReassignment

ANY: Final = "any"
_VERSION: Final = 1


class Replica(NamedTuple):
    """A replica; the order is that of Kafka's tool."""

    broker: int
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}-{self.broker}"


class Plan(NamedTuple):
    """The wanted replicas of partitions, as often as the file names them, and the wanted directories of replicas."""

    partitions: list[tuple[Partition, list[int]]]
    directories: dict[Replica, str]


class Move(NamedTuple):
    """The brokers that a partition moves from and to."""

    sources: set[int]
    destinations: set[int]


def named(partition: Partition) -> str:
    """The name of a partition, such as orders-0."""
    return f"{partition[0]}-{partition[1]}"


def joined(values: Iterable[object]) -> str:
    """The values with commas between them."""
    return ",".join(map(str, values))


def repeated(values: Iterable[Any]) -> list[Any]:
    """What occurs more than once."""
    return [value for value, times in Counter(values).items() if times > 1]


# --- files ---


def read_plan(path: Path) -> Plan:
    """The plan in a file. Raises CommandFailed if it cannot be read."""
    plan = Plan([], {})
    for each in _entries(path, "partitions"):
        try:
            partition = _typed(each["topic"], str), _typed(each["partition"], int)
            replicas = [_typed(broker, int) for broker in each["replicas"]]
            directories = [_typed(name, str) for name in each.get("log_dirs", [ANY] * len(replicas))]
        except (KeyError, TypeError, ValueError) as error:
            raise CommandFailed(f"{path} has a partition that cannot be read: {error!r}") from error
        if len(replicas) != len(directories):
            raise CommandFailed(
                f"Size of replicas list {replicas} is different from size of log dirs list [{', '.join(directories)}] "
                f"for partition {named(partition)}"
            )
        plan.partitions.append((partition, replicas))
        for broker, directory in zip(replicas, directories, strict=True):
            if directory != ANY:
                plan.directories[Replica(broker, *partition)] = directory
    return plan


def read_topics(path: Path) -> list[str]:
    """The topics in a file, {"version": 1, "topics": [{"topic": ...}]}. Raises CommandFailed."""
    try:
        topics = [_typed(each["topic"], str) for each in _entries(path, "topics")]
    except (KeyError, TypeError, ValueError) as error:
        raise CommandFailed(f"{path} has a topic that cannot be read: {error!r}") from error
    if twice := repeated(topics):
        raise CommandFailed(f"List of topics to reassign contains duplicate entries: [{', '.join(twice)}]")
    return topics


def _entries(path: Path, key: str) -> list[Any]:
    """A list of objects in a JSON file."""
    try:
        found = json.loads(path.read_bytes())
        version = found.get("version", _VERSION)
        if version != _VERSION:
            raise CommandFailed(f"Not supported version field value {version}")
        return [*found.get(key, [])]
    except OSError as error:
        raise CommandFailed(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise CommandFailed(f"{path} is not a JSON object with {key!r}: {error}") from error


def _typed(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise TypeError(f"{value!r} should be of type {kind.__name__}")
    return value


def to_start(plan: Plan) -> dict[Partition, list[int]]:
    """The wanted replicas of each partition. Raises CommandFailed for a plan that cannot be started."""
    if not plan.partitions:
        raise CommandFailed("Partition reassignment list cannot be empty")
    if not all(replicas for _, replicas in plan.partitions):
        raise CommandFailed("Partition replica list cannot be empty")
    if twice := repeated(partition for partition, _ in plan.partitions):
        raise CommandFailed(f"Partition reassignment contains duplicate topic partitions: {joined(map(named, twice))}")
    wrong = [(partition, repeated(replicas)) for partition, replicas in plan.partitions]
    if said := [
        f"{named(partition)} contains multiple entries for {joined(twice)}" for partition, twice in wrong if twice
    ]:
        raise CommandFailed(f"Partition replica lists may not contain duplicate entries: {'. '.join(said)}")
    return dict(plan.partitions)


def as_json(replicas: Mapping[Partition, Sequence[int]], directories: Mapping[Replica, str]) -> str:
    """A plan as Kafka's tool writes it."""
    partitions = [
        {
            "topic": topic,
            "partition": index,
            "replicas": [*replicas[topic, index]],
            "log_dirs": [directories.get(Replica(broker, topic, index), ANY) for broker in replicas[topic, index]],
        }
        for topic, index in sorted(replicas)
    ]
    return json.dumps({"version": _VERSION, "partitions": partitions}, ensure_ascii=False, separators=(",", ":"))


# --- moves and their throttles ---


def moves(
    ongoing: Mapping[Partition, OngoingPartitionReassignment],
    wanted: Mapping[Partition, Sequence[int]],
    current: Mapping[Partition, Sequence[int]],
) -> dict[Partition, Move]:
    """What moves now or will move; a partition that moves already still comes from its first brokers."""
    found = {
        partition: Move({*each.replicas} - {*each.adding_replicas}, {*each.adding_replicas})
        for partition, each in ongoing.items()
    }
    for partition, replicas in wanted.items():
        sources = found[partition].sources if partition in found else {*current[partition]}
        found[partition] = Move(sources, {*replicas} - sources)
    return found


def throttled_replicas(moving: Mapping[Partition, Move]) -> dict[str, tuple[str, str]]:
    """By topic the values of leader. and follower.replication.throttled.replicas."""
    leaders: dict[str, set[str]] = {}
    followers: dict[str, set[str]] = {}
    for (topic, index), move in moving.items():
        leaders.setdefault(topic, set()).update(f"{index}:{broker}" for broker in move.sources)
        followers.setdefault(topic, set()).update(f"{index}:{broker}" for broker in move.destinations)
    return {topic: (joined(sorted(leaders[topic])), joined(sorted(followers[topic]))) for topic in leaders}
