"""A model client that deletes the records of a topic below some offset, again and again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import trio

from kbroker.testing.draws import Draws
from kbroker.testing.model_router import Router, Unreachable, pause
from kbroker.testing.recorder import History
from wire.errors import ErrorCode, code_of
from wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic

_VERSION: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleterPlan:
    """What a deleter does: once in `every_ms` it deletes up to some offset of one partition.

    Shape  it leaves at most `rest` records below the high watermark
    """

    name: str
    topic: str
    partitions: tuple[int, ...]
    every_ms: int
    rest: int


async def run_deleter(router: Router, plan: DeleterPlan, history: History, *, seed: int, stopping: trio.Event) -> None:
    """Delete until the run stops. What a leader has confirmed must stay deleted."""
    draws = Draws(seed, plan.name)
    while not stopping.is_set():
        await pause(stopping, draws.between(plan.every_ms // 2, plan.every_ms))
        index = draws.choice(plan.partitions)
        key = f"{plan.topic}-{index}"
        try:
            node = await router.leader((plan.topic, index))
            replica = router.cluster.nodes[node].replica(plan.topic, index)
            end = 0 if replica is None else replica.known_high_watermark
            wanted = max(end - draws.between(0, plan.rest), 0)
            history.deleted[key] = max(history.deleted[key], wanted)
            part = DeleteRecordsPartition(partition_index=index, offset=wanted)
            topic = DeleteRecordsTopic(name=plan.topic, partitions=[part])
            answer = await router.ask(node, DeleteRecordsRequest(topics=[topic], timeout_ms=5_000), version=_VERSION)
            found = answer.topics[0].partitions[0]
            if code_of(found.error_code) is ErrorCode.NONE:
                history.confirmed[key] = max(history.confirmed[key], found.low_watermark)
            else:
                await router.forget((plan.topic, index))
        except Unreachable:
            await router.forget((plan.topic, index))
    router.close()
