"""What a plan does to a cluster: each act begins, lasts, and is ended.

An act that would break a promise by itself does not begin. A record that is acknowledged by all in-sync replicas
survives the loss of power as long as one of them keeps its power, so a node loses its power only if every partition
that it has in sync has another running replica in sync: Kafka promises no more without `flush.messages=1`.
"""

from __future__ import annotations

from typing import Final

import trio

from kbroker.metadata.names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from kbroker.metadata.parts import TRANSACTION_VERSION_FEATURE
from kbroker.testing.cluster import MemoryCluster
from kbroker.testing.composed_acts import (
    ASK_MS,
    COMPOSED_ACTS,
    FAR_AHEAD_MS,
    Begin,
    End,
    ask,
    elect_preferred,
    may_lose_power,
    nothing,
    revive,
    stop,
)
from kbroker.testing.disk import Fault
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.frames import FrameFault
from kbroker.testing.network import Pace
from kbroker.testing.plan import REQUESTS, REQUESTS_OF_BROKERS, TRANSACTION_REQUESTS, Act
from kbroker.testing.store import StoreFault
from kbroker.testing.transaction_acts import TRANSACTION_ACTS
from wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

_COORDINATED: Final = (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC)


async def perform(cluster: MemoryCluster, act: Act) -> None:
    """Begin an act, let it last, and end it; a node that has ended is started again."""
    begin = ACTS[act.kind]
    cluster.trace("act", str(act))
    end = await begin(cluster, act)
    if end is None:
        cluster.trace("act has no effect", act.kind)
        return
    await trio.sleep(act.for_ms / 1000)
    await end()
    cluster.trace("act ends", act.kind)


async def _kill(cluster: MemoryCluster, act: Act) -> End | None:
    node = cluster.nodes[act.nodes[0]]
    if not node.is_running:
        return None
    await node.kill()
    return lambda: revive(node)


async def _lose_power(cluster: MemoryCluster, act: Act) -> End | None:
    node = cluster.nodes[act.nodes[0]]
    if not node.is_running or not (node.is_controller or may_lose_power(cluster, node)):
        return None
    await node.kill(loss=Loss(act.values["loss"]))
    return lambda: revive(node)


async def _restart(cluster: MemoryCluster, act: Act) -> End | None:
    node = cluster.nodes[act.nodes[0]]
    if not node.is_serving:
        return None
    await stop(node)
    return lambda: revive(node)


async def _cut(cluster: MemoryCluster, act: Act) -> End | None:
    sender, receiver = (cluster.nodes[each].host for each in act.nodes)
    both = act.kind == "cut-both-ways"
    cluster.network.cut(sender, receiver, both_ways=both)

    async def end() -> None:
        cluster.network.mend(sender, receiver, both_ways=both)

    return end


async def _isolate(cluster: MemoryCluster, act: Act) -> End | None:
    host = cluster.nodes[act.nodes[0]].host
    others = [node.host for node in cluster.nodes.values() if node.host != host]
    cluster.network.isolate(host, *others)

    async def end() -> None:
        for other in others:
            cluster.network.mend(host, other, both_ways=True)

    return end


async def _slow_link(cluster: MemoryCluster, act: Act) -> End | None:
    sender, receiver = (cluster.nodes[each].host for each in act.nodes)
    cluster.network.slow(sender, receiver, Pace(**act.values))

    async def end() -> None:
        cluster.network.slow(sender, receiver)

    return end


async def _reset(cluster: MemoryCluster, act: Act) -> End | None:
    cluster.network.reset(cluster.nodes[act.nodes[0]].host)
    return nothing


async def _frame(cluster: MemoryCluster, act: Act) -> End | None:
    values = act.values
    is_client = values["from"] == "client"
    requests = (REQUESTS if is_client else REQUESTS_OF_BROKERS) | TRANSACTION_REQUESTS
    fault = FrameFault(
        values["fault"],
        requests[values["request"]],
        sender=values.get("sender", ""),
        is_from_node=not is_client,
        delay_ms=values["delay_ms"],
        times=values["times"],
    )
    cluster.network.frame_faults.append(fault)

    async def end() -> None:
        if fault in cluster.network.frame_faults:
            cluster.network.frame_faults.remove(fault)

    return end


async def _slow_disk(cluster: MemoryCluster, act: Act) -> End | None:
    return _with_fault(cluster, act, Fault(0, name="sync", times=-1, slow_ms=act.values["slow_ms"]))


async def _disk_error(cluster: MemoryCluster, act: Act) -> End | None:
    return _with_fault(cluster, act, Fault(times=1, **{key: act.values[key] for key in act.values if key != "loss"}))


def _with_fault(cluster: MemoryCluster, act: Act, fault: Fault) -> End:
    node = cluster.nodes[act.nodes[0]]
    node.disk.inject(fault)

    async def end() -> None:
        node.disk.heal()
        if (loss := act.values.get("loss")) and node.is_running and may_lose_power(cluster, node):
            await node.kill(loss=Loss(loss))
        await revive(node)

    return end


async def _jump(cluster: MemoryCluster, act: Act) -> End | None:
    node, ms = cluster.nodes[act.nodes[0]], act.values["ms"]
    lives = node.lives
    node.jump(ms)

    async def end() -> None:
        if ms < FAR_AHEAD_MS or node.lives == lives:  # otherwise its start has set it right
            node.jump(-ms)

    return end


async def _store_fault(cluster: MemoryCluster, act: Act) -> End | None:
    fault = StoreFault(**act.values)
    cluster.store.faults.append(fault)

    async def end() -> None:
        if fault in cluster.store.faults:
            cluster.store.faults.remove(fault)

    return end


async def _slow_store(cluster: MemoryCluster, act: Act) -> End | None:
    cluster.store.slow(act.values["ms"])

    async def end() -> None:
        cluster.store.slow(0)

    return end


async def _elect(cluster: MemoryCluster, _act: Act) -> End | None:
    return nothing if await elect_preferred(cluster) else None


async def _reassign(cluster: MemoryCluster, act: Act) -> End | None:
    """Give every partition of the topics of the run, or of those of coordinators, the next brokers as replicas."""
    count = len(cluster.brokers)
    topics = []
    for name, topic in cluster.image.topics_by_name.items():
        is_wanted = name in _COORDINATED if act.kind == "move-coordinators" else not name.startswith("__")
        if not is_wanted:
            continue
        moved = [
            ReassignablePartition(
                partition_index=index,
                replicas=[(each - 1 + act.values["turn"]) % count + 1 for each in partition.replicas],
            )
            for index, partition in topic.partitions.items()
        ]
        topics.append(ReassignableTopic(name=name, partitions=moved))
    asked = await ask(cluster, AlterPartitionReassignmentsRequest(timeout_ms=ASK_MS, topics=topics))
    return nothing if asked else None


async def _raise_version(cluster: MemoryCluster, _act: Act) -> End | None:
    """Raise transaction.version while clients work."""
    update = FeatureUpdateKey(feature=TRANSACTION_VERSION_FEATURE, max_version_level=2)
    return nothing if await ask(cluster, UpdateFeaturesRequest(feature_updates=[update])) else None


ACTS: Final[dict[str, Begin]] = {
    **COMPOSED_ACTS,
    **TRANSACTION_ACTS,
    "kill": _kill,
    "power-loss": _lose_power,
    "restart": _restart,
    "cut": _cut,
    "cut-both-ways": _cut,
    "isolate": _isolate,
    "slow-link": _slow_link,
    "reset": _reset,
    "frame": _frame,
    "slow-disk": _slow_disk,
    "disk-error": _disk_error,
    "clock-jump": _jump,
    "store-error": _store_fault,
    "store-damage": _store_fault,
    "store-slow": _slow_store,
    "elect-preferred": _elect,
    "reassign": _reassign,
    "move-coordinators": _reassign,
    "raise-transaction-version": _raise_version,
}
