"""Runs a scenario: a cluster, its topic, and the acts and looks that a scenario needs.

Brokers are A, B, C, ...; `orders` is the topic, with one partition. Every link takes DELAY_MS, without variation, so a
scenario can stop the world between two messages: it polls each ms of virtual time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from kbroker.replication.partition import Partition
from kbroker.testing.cluster import CLIENT, CONTROLLER, MemoryCluster, MemoryNode, memory_cluster
from kbroker.testing.determinism import run
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.network import Pace
from kbroker.testing.scenarios import Scenario
from kbroker.testing.scenarios._clients import ALL, Write, ask_end_of_epoch, produce_to, read_from
from kbroker.testing.scenarios._looks import LETTERS, letter, replica_look, tier_look
from kbroker.tiered.api import FINISHED, RemoteLogSegmentMetadata, TopicIdPartition
from wire.batch_header import NO_PRODUCER_ID
from wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions

TOPIC: Final = "orders"
DELAY_MS: Final = 5
VALUE_BYTES: Final = 250
"""The size of a value, so that a segment of SEGMENT_BYTES has three records."""
SEGMENT_BYTES: Final = 1_000
_SEED: Final = 12
"""With this one no story cuts a broker off from the leader of the metadata of its copies."""
_POLL_S: Final = 0.001
_PATIENCE_S: Final = 120

Show = Callable[[dict[str, object]], object]

TIER_SETTINGS: Final[dict[str, object]] = {
    "log.segment.bytes": SEGMENT_BYTES,
    "remote.log.manager.task.interval.ms": 500,
    "log.retention.check.interval.ms": 500,
    "log.segment.delete.delay.ms": 0,
}


def perform(scenario: Scenario, rule: str, show: Show) -> None:
    """Run a scenario and show its beginning, its steps and its end. Errors: AssertionError if it goes another way."""
    run(_perform, scenario, rule, show, seed=_SEED)


async def _perform(scenario: Scenario, rule: str, show: Show) -> None:
    show(
        {
            "scenario": scenario.name,
            "title": scenario.title,
            "rule": rule,
            "rules": scenario.rules,
            "rule_text": scenario.rule_text(rule),
            "opening": scenario.opening,
            "has_tier": scenario.has_tier,
            "source": scenario.source,
        }
    )
    settings = {**(TIER_SETTINGS if scenario.has_tier else {}), **scenario.settings}
    async with memory_cluster(
        scenario.brokers,
        settings=settings,
        seed=_SEED,
        pace=Pace(delay_ms=DELAY_MS, jitter_ms=0),
        has_tier=scenario.has_tier,
    ) as cluster:
        async with trio.open_nursery() as nursery:
            facts = await scenario.tell(Stage(cluster, scenario, rule, show, nursery))
            nursery.cancel_scope.cancel()
        show({"facts": facts, "lesson": scenario.lesson})


@dataclass(eq=False)
class Stage:
    """What a scenario acts on."""

    cluster: MemoryCluster
    scenario: Scenario
    rule: str
    show: Show
    nursery: trio.Nursery
    writes: list[Write] = field(default_factory=list)
    reads: dict[str, Any] | None = None
    _start_s: float = field(default_factory=trio.current_time)
    _steps: int = 0
    _segments: list[RemoteLogSegmentMetadata] = field(default_factory=list)

    # Looking

    def node(self, name: str) -> MemoryNode:
        """A broker by its letter."""
        return self.cluster.nodes[LETTERS.index(name) + 1]

    def replica(self, name: str) -> Partition:
        """The replica of a broker that runs."""
        found = self.node(name).replica(TOPIC)
        assert found is not None, f"{name} has no replica"
        return found

    def has_replica(self, name: str) -> bool:
        """Whether a broker runs and has loaded its replica."""
        return self.node(name).replica(TOPIC) is not None

    def end(self, name: str) -> int:
        """The log end offset of a replica."""
        return self.replica(name).log.log_end_offset

    def local_start(self, name: str) -> int:
        """Where the local log of a replica starts."""
        return self.replica(name).log.local_log_start_offset

    def high_watermark(self, name: str) -> int:
        """The high watermark that a replica knows."""
        return self.replica(name).known_high_watermark

    def epoch(self, name: str) -> int:
        """The leader epoch that a replica knows."""
        return self.replica(name).leader_epoch

    def look(self, name: str) -> dict[str, Any]:
        """The whole state of a replica, running or not."""
        hosts = {node.host: letter(node.id) or "controller" for node in self.cluster.nodes.values()}
        return replica_look(self.cluster, self.node(name), TOPIC, hosts=hosts)

    def values(self, name: str) -> list[str]:
        """The values of the records that a replica has on its disk."""
        return [one["value"] for one in self.look(name)["records"]]

    @property
    def leader(self) -> str | None:
        """The leader, as the controller has it."""
        return letter(self.cluster.partition(TOPIC).leader)

    @property
    def isr(self) -> list[str]:
        """The in-sync replicas, as the controller has them."""
        return [letter(each) or "" for each in sorted(self.cluster.partition(TOPIC).isr)]

    def segments(self, name: str | None = None) -> list[RemoteLogSegmentMetadata]:
        """The segments in the tier, as a broker has read them; without a name as the leader or another one has. While
        no broker knows, they are as before.
        """
        if name is None:
            running = sorted(self.cluster.brokers, key=lambda node: letter(node.id) != self.leader)
        else:
            running = [self.node(name)]
        partition = TopicIdPartition(self.cluster.image.topics_by_name[TOPIC].id, TOPIC, 0)
        for node in running:
            manager = None if node.node is None or node.node.broker is None else node.node.broker.tier.manager
            if manager is not None and manager.tools.metadata.is_ready(partition):
                self._segments = list(manager.tools.metadata.list_remote_log_segments(partition))
                return self._segments
        return self._segments

    def finished(self, name: str | None = None) -> list[tuple[int, int]]:
        """The first and last offsets of the finished segments in the tier."""
        return sorted((one.start_offset, one.end_offset) for one in self.segments(name) if one.state is FINISHED)

    def has_event(self, event: str) -> bool:
        """Whether a broker has logged an event."""
        return any(line.event == event for line in self.cluster.events.lines)

    # Waiting and telling

    async def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait until a condition holds. Errors: AssertionError after 2 minutes of virtual time."""
        with trio.move_on_after(_PATIENCE_S):
            while not condition():  # noqa: ASYNC110 - anything may make it true
                await trio.sleep(_POLL_S)
            return
        raise AssertionError(f"it never happened that {what}")

    async def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        await trio.sleep(seconds)

    def step(self, text: str) -> None:
        """Show a sentence and the state after it."""
        self._steps += 1
        brokers = [letter(node.id) or "" for node in self.cluster.brokers]
        self.show(
            {
                "step": self._steps,
                "at_ms": round((trio.current_time() - self._start_s) * 1000),
                "text": " ".join(text.split()),
                "replicas": [look for name in brokers if (look := self.look(name))["state"] != "no replica"],
                "tier": tier_look(self.cluster, self.segments()) if self.scenario.has_tier else None,
                "writes": [
                    {
                        "values": list(one.values),
                        "acks": "all" if one.acks == ALL else str(one.acks),
                        "answer": None if one.code is None else one.code.name,
                        "code": one.code,
                    }
                    for one in self.writes
                ],
                "read": self.reads,
            }
        )
        self.writes = [one for one in self.writes if not one.is_over]
        self.reads = None

    # Acting

    async def create_topic(self, *replicas: str, **configs: object) -> None:
        """Create the topic; the first replica leads."""
        if self.scenario.has_tier:
            configs = {"remote_storage_enable": "true", **configs}
        ids = [LETTERS.index(name) + 1 for name in replicas]
        await self.cluster.create_topic(TOPIC, partitions=1, replicas=[ids], **configs)
        await self.until(lambda: all(self.has_replica(name) for name in replicas), "the replicas exist")
        await self.until(lambda: self.replica(replicas[0]).is_leader, f"{replicas[0]} leads")

    def send(
        self,
        *values: str,
        to: str | None = None,
        acks: int = ALL,
        timeout_ms: int = 30_000,
        producer_id: int = NO_PRODUCER_ID,
        sequence: int = 0,
    ) -> Write:
        """Produce records, one batch for each, and do not wait for the answers. With a producer id they are idempotent,
        and sequence is that of the first one.
        """
        write = Write(values, acks, producer_id, sequence)
        self.writes.append(write)
        to = to or self.leader
        assert to is not None, "the partition has no leader"
        size = VALUE_BYTES if self.scenario.has_tier else 0
        self.nursery.start_soon(self._send, write, self.node(to), timeout_ms, size)
        return write

    async def produce(
        self,
        *values: str,
        to: str | None = None,
        acks: int = ALL,
        producer_id: int = NO_PRODUCER_ID,
        sequence: int = 0,
    ) -> Write:
        """Produce records and wait for the answers. Errors: AssertionError if they are not acknowledged."""
        write = self.send(*values, to=to, acks=acks, producer_id=producer_id, sequence=sequence)
        await self.until(lambda: write.is_over, f"{', '.join(values)} are answered")
        assert write.is_acknowledged, f"{values} answered {write.code}"
        return write

    async def _send(self, write: Write, to: MemoryNode, timeout_ms: int, size: int) -> None:
        client = await self.cluster.connect(to)
        await produce_to(client, TOPIC, write, timestamp_ms=to.env.timestamp_ms(), timeout_ms=timeout_ms, size=size)

    async def read(self, name: str | None = None, *, start: int = 0) -> list[str]:
        """What a consumer reads from this offset to the high watermark, from the leader or another broker."""
        name = name or self.leader
        assert name is not None
        topic_id = self.cluster.image.topics_by_name[TOPIC].id
        found = await read_from(await self.cluster.connect(self.node(name)), topic_id, start)
        self.reads = {"from": name, "start": start, "records": found}
        return [one["value"] for one in found]

    async def end_of_epoch(self, name: str, epoch: int) -> int:
        """Where an epoch ended, as a broker answers OffsetForLeaderEpoch. Errors: KafkaError."""
        return await ask_end_of_epoch(await self.cluster.connect(self.node(name)), TOPIC, epoch)

    async def settle(self, *names: str) -> None:
        """Wait until these are the in-sync replicas, if some are named, and all know that everything is committed."""
        if names:
            await self.until(lambda: self.isr == list(names), f"{', '.join(names)} are in sync")
        leader = self.leader
        assert leader is not None
        await self.until(
            lambda: all(self.high_watermark(name) == self.end(name) == self.end(leader) for name in self.isr),
            "all in-sync replicas know that everything is committed",
        )

    async def kill(self, name: str, *, power: bool = False) -> None:
        """Kill a broker; with `power` its disk loses everything that was not synced."""
        await self.node(name).kill(loss=Loss.ONLY_SYNCED if power else Loss.PROCESS_DEATH)

    async def stop(self, name: str) -> None:
        """Shut a broker down cleanly."""
        await self.node(name).stop()

    async def start(self, name: str) -> None:
        """Start a broker, and wait until it has its replica again."""
        await self.node(name).start()
        await self.until(lambda: self.has_replica(name), f"{name} has its replica")
        await self.until(lambda: self.replica(name).role.value != "none", f"{name} knows its role")

    def cut(self, sender: str, receiver: str) -> None:
        """Deliver nothing from one broker to another; CLIENT and controller are named so."""
        self.cluster.network.cut(self._host(sender), self._host(receiver))

    def cut_both(self, one: str, other: str) -> None:
        """Cut both directions."""
        self.cut(one, other)
        self.cut(other, one)

    def mend(self) -> None:
        """End all cuts."""
        self.cluster.network.mend()

    def _host(self, name: str) -> str:
        if name == "client":
            return CLIENT
        return self.cluster.nodes[CONTROLLER].host if name == "controller" else self.node(name).host

    async def until_leads(self, name: str) -> None:
        """Wait until the controller has elected a broker, and the broker knows it."""
        await self.until(
            lambda: self.leader == name and self.has_replica(name) and self.replica(name).is_leader, f"{name} leads"
        )

    async def move_leadership(self, first: str, *others: str) -> None:
        """Make a replica the preferred one, and have the controller elect it."""
        await self.reassign(first, *others)
        request = ElectLeadersRequest(
            election_type=0, topic_partitions=[TopicPartitions(topic=TOPIC, partitions=[0])], timeout_ms=10_000
        )
        await self.cluster.ask(self._any_broker(first), request)
        await self.until_leads(first)

    async def reassign(self, *names: str) -> None:
        """Give the partition these replicas, in this order; returns when the controller has begun."""
        ids = [LETTERS.index(name) + 1 for name in names]
        partition = ReassignablePartition(partition_index=0, replicas=ids)
        topic = ReassignableTopic(name=TOPIC, partitions=[partition])
        answer = await self.cluster.ask(self._any_broker(names[0]), AlterPartitionReassignmentsRequest(topics=[topic]))
        assert not answer.error_code, answer.error_message

    def _any_broker(self, preferred: str) -> MemoryNode:
        node = self.node(preferred)
        return node if node.is_serving else next(one for one in self.cluster.brokers if one.is_serving)
