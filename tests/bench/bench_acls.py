"""What an authorizer with 10,000 ACLs costs: a Produce with and without it, a decision, and a change of an ACL.

    python -m tests.bench.bench_acls

A whole broker runs in memory in this process, and the rounds of both brokers alternate. The figures are CPU time.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Final
from uuid import UUID

import trio

from kbroker.config.authorizer import STANDARD_AUTHORIZER
from kbroker.metadata.principal import ANONYMOUS
from kbroker.security.acls import StandardAuthorizer
from kbroker.security.authorizing import Operation, PatternType, Permission, ResourceType
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from wire.record_batch import Record, build_batch
from wire.stored.metadata import AccessControlEntryRecord

ACLS: Final = 10_000
ROUNDS, REQUESTS = 15, 300
TOPIC: Final = "orders"


def acls() -> dict[UUID, AccessControlEntryRecord]:
    """ACLs of 100 users on topics and prefixes, and one that lets everybody write to the topic."""
    found = {}
    for number in range(ACLS):
        is_last = number == ACLS - 1
        found[UUID(int=number + 1)] = AccessControlEntryRecord(
            id=UUID(int=number + 1),
            resource_type=ResourceType.TOPIC,
            resource_name=TOPIC if is_last else f"{'o' * (number % 40)}topic-{number // 4}",
            pattern_type=PatternType.LITERAL if is_last or number % 2 else PatternType.PREFIXED,
            principal="User:ANONYMOUS" if is_last else f"User:user-{number % 100}",
            host="*",
            operation=Operation.ALL if is_last else Operation.READ + number % 3,
            permission_type=Permission.ALLOW,
        )
    return found


def decisions() -> None:
    """Print the time of a decision and of a change."""
    judge = StandardAuthorizer()
    began = time.process_time()
    judge.update(all_acls := acls())
    print(f"load {ACLS} ACLs               {(time.process_time() - began) * 1e3:8.1f} ms")
    names = [f"name-{number}" for number in range(5_000)]
    for what in ("a decision, not cached", "a decision, cached"):
        began = time.process_time()
        for name in names:
            judge.allows(ANONYMOUS, "10.0.0.1", Operation.WRITE, ResourceType.TOPIC, name)
        print(f"{what:28} {(time.process_time() - began) / len(names) * 1e6:8.2f} us")
    began = time.process_time()
    judge.update({id: acl for id, acl in all_acls.items() if id.int != 1})
    print(f"remove one ACL               {(time.process_time() - began) * 1e3:8.1f} ms")


async def _produce(client: Client, batch: bytes) -> float:
    """CPU time of a Produce, in microseconds."""
    request = ProduceRequest(
        transactional_id=None,
        acks=1,
        timeout_ms=1_000,
        topic_data=[TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=batch)])],
    )
    began = time.process_time()
    for _ in range(REQUESTS):
        answer = await client.ask(request, version=11)
    took = time.process_time() - began
    assert answer.responses[0].partition_responses[0].error_code == 0
    return took / REQUESTS * 1e6


async def _ready(broker: MemoryBroker) -> Client:
    client = await broker.connect()
    topic = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1, assignments=[], configs=[])
    created = await client.ask(CreateTopicsRequest(topics=[topic], timeout_ms=1_000, validate_only=False))
    assert created.topics[0].error_code == 0
    return client


async def main() -> None:
    """Print all figures."""
    decisions()
    batch = build_batch([Record(timestamp=0, value=b"x" * 100)])
    guarded = {"authorizer.class.name": STANDARD_AUTHORIZER, "allow.everyone.if.no.acl.found": "true"}
    async with memory_broker() as without, memory_broker(settings=guarded) as with_acls:
        clients = [await _ready(without), await _ready(with_acls)]
        assert with_acls.node.broker is not None
        assert with_acls.node.broker.authorizer is not None
        with_acls.node.broker.authorizer.update(acls())
        times: tuple[list[float], list[float]] = ([], [])
        for number in range(ROUNDS):
            for which in (0, 1) if number % 2 else (1, 0):
                times[which].append(await _produce(clients[which], batch))
    plain, checked = median(times[0]), median(times[1])
    print(f"Produce without authorizer   {plain:8.1f} us, with {ACLS} ACLs {checked:.1f} us: {checked / plain:.3f} x")


if __name__ == "__main__":
    trio.run(main)
