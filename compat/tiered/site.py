"""One broker with a tier: the actions of a scenario, and observations from outside.

`Site` is one broker; `Sites` applies each call to all, waits until each shows the expected state, and compares them.
The actions and observations are those of Apache Kafka's own tiered storage scenarios, using only the brokers' protocol
and files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from compat.brokers import KbrokerProcess
from compat.kafka import KafkaNode
from compat.oracle.batches import Batch, Item
from compat.oracle.conftest import await_leaders
from compat.oracle.raw import connected
from compat.oracle.schema import Message
from compat.tiered.records import Stored, last_offset, records, whole_batches
from compat.tiered.remote_log import RemoteLog, RemoteSegment

T = TypeVar("T")
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING = -1, -2, -3, -4, -5, -6
HOUR_MS = 3_600_000
# Young enough for Kafka's seven days of retention, old enough that all hours of a scenario are in the past.
YESTERDAY_MS = int(time.time() * 1000) - 24 * HOUR_MS
SET, DELETE = 0, 1
WAIT_S = 30.0
# A segment covers less than one hour after its first record: scenarios roll by the records' times.
ROLLED_BY_TIME = {"segment.ms": str(HOUR_MS)}
TIERED = {"remote.storage.enable": "true", **ROLLED_BY_TIME}
# Local segments are deleted as soon as they are copied.
ONLY_THE_ACTIVE_ONE = {"local.retention.bytes": "1"}
# Task intervals that keep scenarios short.
HURRIED = {
    "remote.log.manager.task.interval.ms": "200",
    "log.retention.check.interval.ms": "200",
    "log.initial.task.delay.ms": "100",
    "log.segment.delete.delay.ms": "1000",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "3",
}


@dataclass(frozen=True)
class Records:
    """Batches to produce: each makes its own segment with `ROLLED_BY_TIME`, unless their hours are the same.

    Shape  hours: for each batch, the time of its records in hours after the start; values: how many records each has
    """

    hours: Sequence[int]
    records: int = 1
    padding: int = 0
    start_ms: int = YESTERDAY_MS

    def batches(self) -> list[bytes]:
        """One batch for each of the hours; keys and values name their place."""
        return [
            Batch(
                [
                    Item(b"v%d-%d|" % (number, place) + bytes(self.padding), b"k%d" % place, timestamp_delta=place)
                    for place in range(self.records)
                ],
                # Two batches of one hour are a second apart, so that their times differ.
                base_timestamp=self.start_ms + hour * HOUR_MS + 1000 * self.hours[:number].count(hour),
            ).encode()
            for number, hour in enumerate(self.hours)
        ]


class Site:
    """One broker in a scenario."""

    def __init__(self, broker: KafkaNode | KbrokerProcess, tier_directory: Path) -> None:
        self.broker = broker
        self.name = broker.name
        self.tier_directory = tier_directory
        self.remote = RemoteLog(lambda: broker.bootstrap_servers)
        self._ids: dict[str, bytes] = {}

    @classmethod
    def in_directory(cls, directory: Path, *, is_kafka: bool, settings: Mapping[str, str] = HURRIED) -> Site:
        """A broker of either kind, not started, whose tier is a directory in this one."""
        tier = directory / "tier"
        if is_kafka:
            return cls(KafkaNode(directory, overrides=settings, tier=tier), tier)
        overrides = [f"{key}={value}" for key, value in settings.items()]
        return cls(KbrokerProcess(directory, overrides=overrides, tier=tier), tier)

    @property
    def address(self) -> str:
        """Its bootstrap servers."""
        return self.broker.bootstrap_servers

    def call(self, api: str, version: int, message: Message) -> Message:
        """One request and its answer."""
        with connected(self.address) as connection:
            return connection.call(api, version, message)

    # Actions

    def create(self, name: str, configs: Mapping[str, str], *, partitions: int = 1) -> None:
        """Create a topic and wait for its leaders."""
        settings = [{"Name": key, "Value": value} for key, value in configs.items()]
        topic = {"Name": name, "NumPartitions": partitions, "ReplicationFactor": 1, "Configs": settings}
        created = self.call("CreateTopics", 7, {"Topics": [topic], "timeoutMs": 30_000})["Topics"][0]
        assert created["ErrorCode"] == 0, (self.name, created)
        self._ids[name] = created["TopicId"]
        await_leaders(self.address, name, partitions)

    def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        answer = self.call("DeleteTopics", 4, {"TopicNames": [name], "TimeoutMs": 30_000})
        assert answer["Responses"][0]["ErrorCode"] == 0, (self.name, answer)

    def create_partitions(self, name: str, count: int) -> None:
        """Increase the number of partitions and wait for their leaders."""
        topic = {"Name": name, "Count": count, "Assignments": None}
        answer = self.call("CreatePartitions", 2, {"Topics": [topic], "TimeoutMs": 30_000})
        assert answer["Results"][0]["ErrorCode"] == 0, (self.name, answer)
        await_leaders(self.address, name, count)

    def alter(self, name: str, configs: Mapping[str, str]) -> int:
        """Set settings of a topic; returns the error code."""
        changes = [{"Name": key, "ConfigOperation": SET, "Value": value} for key, value in configs.items()]
        resource = {"ResourceType": 2, "ResourceName": name, "Configs": changes}
        answer = self.call("IncrementalAlterConfigs", 1, {"Resources": [resource], "ValidateOnly": False})
        return int(answer["Responses"][0]["ErrorCode"])

    def produce(self, name: str, batches: Sequence[bytes], *, partition: int = 0) -> list[int]:
        """Write batches one after the other; returns their offsets."""
        offsets = []
        with connected(self.address) as connection:
            for batch in batches:
                part = {"Index": partition, "Records": batch}
                message = {"Acks": -1, "TimeoutMs": 10_000, "TopicData": [{"Name": name, "PartitionData": [part]}]}
                answer = connection.call("Produce", 7, message)["Responses"][0]["PartitionResponses"][0]
                assert answer["ErrorCode"] == 0, (self.name, answer)
                offsets.append(answer["BaseOffset"])
        return offsets

    def delete_records(self, name: str, offset: int, *, partition: int = 0) -> int:
        """Delete the records before an offset; returns the new start."""
        parts = [{"PartitionIndex": partition, "Offset": offset}]
        answer = self.call("DeleteRecords", 1, {"Topics": [{"Name": name, "Partitions": parts}], "TimeoutMs": 10_000})
        found = answer["Topics"][0]["Partitions"][0]
        assert found["ErrorCode"] == 0, (self.name, answer)
        return int(found["LowWatermark"])

    def restart(self, *, between: Callable[[Site], None] = lambda _: None) -> None:
        """Stop the broker, run a function on its files, start it and wait for its leaders."""
        self.broker.stop()
        between(self)
        self.broker.start()

    def await_leaders(self, name: str, partitions: int = 1) -> None:
        """Wait until it leads a topic's partitions."""
        await_leaders(self.address, name, partitions)

    # Observations

    def topic_id(self, name: str) -> bytes:
        """The id of a topic that `create` created."""
        return self._ids[name]

    def segments(self, name: str, partition: int = 0) -> list[RemoteSegment]:
        """The segments of a partition in `__remote_log_metadata`."""
        return self.remote.segments(self._ids[name], partition)

    def live(self, name: str, partition: int = 0) -> list[tuple[int, int]]:
        """The offsets of the readable segments in the tier."""
        return self.remote.live(self._ids[name], partition)

    def offset(self, name: str, timestamp: int, *, partition: int = 0, version: int = 11) -> tuple[int, int, int, int]:
        """ListOffsets: error code, offset, timestamp and leader epoch."""
        asked = [{"PartitionIndex": partition, "Timestamp": timestamp}]
        answer = self.call("ListOffsets", version, {"ReplicaId": -1, "Topics": [{"Name": name, "Partitions": asked}]})
        found = answer["Topics"][0]["Partitions"][0]
        return found["ErrorCode"], found["Offset"], found["Timestamp"], found.get("LeaderEpoch", -1)

    def fetch(self, name: str, offset: int, *, partition: int = 0, limit: int = 1 << 20) -> tuple[int, bytes]:
        """One Fetch: error code and records."""
        part = {"Partition": partition, "FetchOffset": offset, "PartitionMaxBytes": limit}
        topics = [{"Topic": name, "Partitions": [part]}]
        request = {"ReplicaId": -1, "MaxWaitMs": 500, "MinBytes": 1, "SessionEpoch": -1, "Topics": topics}
        found = self.call("Fetch", 11, request)["Responses"][0]["Partitions"][0]
        return found["ErrorCode"], found["Records"] or b""

    def batches(self, name: str, offset: int, *, partition: int = 0, limit: int = 1 << 20) -> Iterator[bytes]:
        """All batches from an offset to the end, by successive Fetches."""
        _, end, _, _ = self.offset(name, LATEST, partition=partition)
        deadline = time.monotonic() + WAIT_S
        while offset < end:
            error, data = self.fetch(name, offset, partition=partition, limit=limit)
            assert error == 0, f"{self.name}: error {error} at {offset} of {name}-{partition}"
            for batch in whole_batches(data):
                yield batch
                offset = last_offset(batch) + 1
            assert time.monotonic() < deadline, f"{self.name}: no records from {offset} of {name}-{partition}"

    def consume(self, name: str, offset: int, *, partition: int = 0, limit: int = 1 << 20) -> list[Stored]:
        """All records from an offset to the end."""
        found = [
            each
            for batch in self.batches(name, offset, partition=partition, limit=limit)
            for each in records(batch)
            if each.offset >= offset
        ]
        assert [each.offset for each in found] == list(range(offset, offset + len(found))), f"{self.name}: a gap"
        return found

    def end_of_epoch(self, name: str, epoch: int, *, partition: int = 0) -> tuple[int, int, int]:
        """OffsetForLeaderEpoch: error code, leader epoch and its end."""
        asked = [{"Partition": partition, "CurrentLeaderEpoch": -1, "LeaderEpoch": epoch}]
        request = {"ReplicaId": -1, "Topics": [{"Topic": name, "Partitions": asked}]}
        found = self.call("OffsetForLeaderEpoch", 4, request)["Topics"][0]["Partitions"][0]
        return found["ErrorCode"], found["LeaderEpoch"], found["EndOffset"]

    def local_segments(self, name: str, partition: int = 0) -> list[int]:
        """The base offsets of the segments in its log directory."""
        return sorted(int(path.stem) for path in self._log(name, partition).glob("*.log"))

    def epochs(self, name: str, partition: int = 0) -> list[tuple[int, int]]:
        """The leader epochs in its checkpoint, each with its start, from the start of the log on.

        Stated: Kafka writes the file whenever the log's start moves. kbroker writes it with the next epoch, or at
        shutdown; entries below the start of the log are dropped when it is read, and also here.
        """
        lines = (self._log(name, partition) / "leader-epoch-checkpoint").read_text().splitlines()[2:]
        entries = [(int(epoch), int(start)) for epoch, start in map(str.split, lines)]
        begin = self.offset(name, EARLIEST, partition=partition)[1]
        floor = [(epoch, begin) for epoch, start in entries if start <= begin][-1:]
        return floor + [(epoch, start) for epoch, start in entries if start > begin]

    def _log(self, name: str, partition: int) -> Path:
        assert self.broker.log_directory is not None
        return self.broker.log_directory / f"{name}-{partition}"

    def tier_files(self, name: str) -> list[str]:
        """Files of a topic in the tier; each broker includes the topic's name in its own way."""
        found = [
            os.path.relpath(os.path.join(directory, file), self.tier_directory)
            for directory, _, files in os.walk(
                self.tier_directory
            )  # continues if a directory is removed during the walk
            for file in files
        ]
        return sorted(path for path in found if name in path)


class Sites:
    """All brokers of a scenario: the first is Apache Kafka, the last the one under test."""

    def __init__(self, sites: Sequence[Site]) -> None:
        self.all = list(sites)

    def each(self, look: Callable[[Site], T]) -> T:
        """Call the same for each; their results must agree, and the common result is returned."""
        found = [look(site) for site in self.all]
        for site, other in zip(self.all[1:], found[1:], strict=True):
            assert other == found[0], f"{self.all[0].name}: {found[0]!r}\n{site.name}: {other!r}"
        return found[0]

    def expect(self, look: Callable[[Site], T], wanted: T) -> None:
        """Wait until each shows the wanted value. Errors: AssertionError with the value of one that does not."""
        deadline = time.monotonic() + WAIT_S
        for site in self.all:
            while (found := look(site)) != wanted:
                assert time.monotonic() < deadline, f"{site.name} shows {found!r} and not {wanted!r}"
                time.sleep(0.02)

    @staticmethod
    def now_ms() -> int:
        """The current time, for records that time-based retention has to judge."""
        return int(time.time() * 1000)

    def create(self, name: str, *configs: Mapping[str, str], partitions: int = 1, **more: str) -> str:
        """Create a topic everywhere; keyword arguments are settings with underscores."""
        settings = {key: value for each in configs for key, value in each.items()}
        settings |= {key.replace("_", "."): value for key, value in more.items()}
        for site in self.all:
            site.create(name, settings, partitions=partitions)
        return name

    def produce(self, name: str, wanted: Records, *, partition: int = 0) -> list[bytes]:
        """Write the same batches everywhere; they must get the same offsets."""
        batches = wanted.batches()
        self.each(lambda site: site.produce(name, batches, partition=partition))
        return batches

    def alter(self, name: str, *, error: int = 0, **configs: str) -> None:
        """Change settings everywhere; keyword arguments are settings with underscores."""
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        assert self.each(lambda site: site.alter(name, settings)) == error

    def expect_remote(self, name: str, *offsets: tuple[int, int], partition: int = 0) -> None:
        """Wait until exactly these segments are readable in the tier."""
        self.expect(lambda site: site.live(name, partition), list(offsets))

    def expect_local(self, name: str, *base_offsets: int, partition: int = 0) -> None:
        """Wait until exactly these segments are in the log directory."""
        self.expect(lambda site: site.local_segments(name, partition), list(base_offsets))

    def expect_offset(self, name: str, timestamp: int, offset: int, *, epoch: int = 0, partition: int = 0) -> None:
        """Wait until ListOffsets answers with this offset and epoch."""
        self.expect(lambda site: site.offset(name, timestamp, partition=partition)[1::2], (offset, epoch))

    def expect_states(self, name: str, *states: Sequence[int], partition: int = 0) -> None:
        """Wait until all segments, including deleted ones, have passed through these states."""
        self.expect(
            lambda site: [each.states for each in site.segments(name, partition)], [tuple(each) for each in states]
        )

    def expect_all_read(self, name: str, offset: int, count: int, *, partition: int = 0) -> None:
        """All records from an offset to the end are read, in large and small pieces, and are the same everywhere."""
        for limit in (1 << 20, 1):
            found = self.each(partial(Site.consume, name=name, offset=offset, partition=partition, limit=limit))
            assert len(found) == count
        self.each(lambda site: list(site.batches(name, offset, partition=partition)))

    def agree_on_segments(self, name: str, partition: int = 0) -> list[RemoteSegment]:
        """All metadata of a partition is the same everywhere."""
        return self.each(lambda site: site.segments(name, partition))
