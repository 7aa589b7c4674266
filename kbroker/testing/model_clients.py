"""The clients of a simulated run.

run_workload   producers, readers and groups work until the run stops
observe        asks every broker again and again who leads, who is in sync, and who is the controller
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Final

import trio

from kbroker.testing.cluster import MemoryCluster
from kbroker.testing.cluster_checker import METADATA
from kbroker.testing.history import Function
from kbroker.testing.model_consumer_group import Consumer
from kbroker.testing.model_deleter import DeleterPlan, run_deleter
from kbroker.testing.model_group import GroupClient, GroupPlan, Member, Offsets, Standalone, Watcher
from kbroker.testing.model_producer import ProducerPlan, run_producer
from kbroker.testing.model_reader import ReaderPlan, run_reader
from kbroker.testing.model_router import Router, Unreachable
from kbroker.testing.model_transactions import TransactionsPlan, Transformer, run_transactions
from kbroker.testing.recorder import History
from wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

LATEST: Final = -1
_OTHERS_EACH: Final = 3
"""Metadata change less often than high watermarks: they are asked for with every so many looks until the faults end."""
_ANSWER_MS: Final = 5_000
_OFFSETS_VERSION, _QUORUM_VERSION = 6, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """All clients of a run."""

    producers: tuple[ProducerPlan, ...] = ()
    readers: tuple[ReaderPlan, ...] = ()
    groups: tuple[GroupPlan, ...] = ()
    deleters: tuple[DeleterPlan, ...] = ()
    transactions: tuple[TransactionsPlan, ...] = ()


async def run_workload(
    cluster: MemoryCluster, workload: Workload, history: History, *, seed: int, stopping: trio.Event
) -> None:
    """Run all clients until the run stops. Each ends its last request; readers go on to the end of what was sent."""
    all_sent = trio.Event()

    async def produce() -> None:
        async with trio.open_nursery() as producing:
            for plan in workload.producers:
                router = Router(cluster, plan.name)
                producing.start_soon(partial(run_producer, router, plan, history, seed=seed, stopping=stopping))
            for writers in workload.transactions:
                producing.start_soon(partial(run_transactions, cluster, writers, history, seed=seed, stopping=stopping))
            for group in workload.groups:
                for client in _clients_of(cluster, group, history, seed=seed):
                    (producing if group.writes_to else nursery).start_soon(client.run, stopping)
            await stopping.wait()
        all_sent.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(produce)
        for reader in workload.readers:
            nursery.start_soon(partial(run_reader, Router(cluster, reader.name), reader, history, stopping=all_sent))
        for deleter in workload.deleters:
            own = Router(cluster, deleter.name)
            nursery.start_soon(partial(run_deleter, own, deleter, history, seed=seed, stopping=stopping))


def _clients_of(cluster: MemoryCluster, plan: GroupPlan, history: History, *, seed: int) -> Iterator[GroupClient]:
    """The members or standalone consumers of a group, and its watchers."""
    offsets = Offsets()
    member: type[GroupClient] = Standalone if plan.is_standalone else Transformer if plan.writes_to else Member
    if plan.is_consumer:
        member = Consumer
        history.consumer_groups.add(plan.name)
    for number in range(plan.members + plan.watchers):
        kind = Watcher if number >= plan.members else member
        yield kind(Router(cluster, f"{plan.name}-{number}"), plan, number, history, offsets, seed=seed)


async def observe(
    cluster: MemoryCluster, history: History, partitions: Sequence[tuple[str, int]], *, each_ms: int = 500
) -> None:
    """Ask every broker about these partitions, forever."""
    async with trio.open_nursery() as nursery:
        for node in cluster.brokers:
            router = Router(cluster, f"observer-{node.id}")
            nursery.start_soon(_watch, router, node.id, history, partitions, each_ms / 1000)


async def _watch(
    router: Router, node: int, history: History, partitions: Sequence[tuple[str, int]], each_s: float
) -> None:
    topics: dict[str, list[int]] = {}
    for name, index in partitions:
        topics.setdefault(name, []).append(index)
    for turn in count():
        try:
            await _ask_offsets(router, node, history, topics)
            if turn % _OTHERS_EACH == 0 or history.has_healed:
                await _ask_metadata(router, node, history, topics)
        except Unreachable:
            router.drop(node)
        await trio.sleep(each_s)


async def _ask_offsets(router: Router, node: int, history: History, topics: dict[str, list[int]]) -> None:
    wanted = [
        ListOffsetsTopic(
            name=name, partitions=[ListOffsetsPartition(partition_index=index, timestamp=LATEST) for index in indexes]
        )
        for name, indexes in topics.items()
    ]
    answer = await router.ask(
        node, ListOffsetsRequest(replica_id=-1, topics=wanted), version=_OFFSETS_VERSION, timeout_ms=_ANSWER_MS
    )
    for topic in answer.topics:
        for part in topic.partitions:
            if not part.error_code:
                key = f"{topic.name}-{part.partition_index}"
                history.answered(f"broker-{node}", Function.LEADS, key, epoch=part.leader_epoch, offset=part.offset)


async def _ask_metadata(router: Router, node: int, history: History, topics: dict[str, list[int]]) -> None:
    process = f"broker-{node}"
    await router.refresh(topics, node=node)
    for (name, index), place in router.places.items():
        out = ",".join(map(str, sorted({*place.replicas} - {*place.isr})))
        history.answered(process, Function.ISR, f"{name}-{index}", value=out, epoch=place.leader_epoch)
    asked = DescribeQuorumRequestTopicData(
        topic_name=METADATA.removesuffix("-0"), partitions=[DescribeQuorumRequestPartitionData(partition_index=0)]
    )
    quorum = await router.ask(
        node, DescribeQuorumRequest(topics=[asked]), version=_QUORUM_VERSION, timeout_ms=_ANSWER_MS
    )
    parts: list[Any] = [] if quorum.error_code else quorum.topics[0].partitions
    for part in parts:
        if not part.error_code and part.leader_id >= 0:
            history.answered(
                process,
                Function.CONTROLLER,
                METADATA,
                value=str(part.leader_id),
                epoch=part.leader_epoch,
                offset=part.high_watermark,
            )


__all__ = [
    "DeleterPlan",
    "GroupPlan",
    "ProducerPlan",
    "ReaderPlan",
    "TransactionsPlan",
    "Workload",
    "observe",
    "run_workload",
]
