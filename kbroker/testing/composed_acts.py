"""Acts of several steps, for states that single acts reach too seldom, and what all acts have in common.

blackout     all nodes lose their power at once, where every record is synced before it is acknowledged
overtake     a replica is cut off until it is out of sync, while the others go on; then all others end, and it leads
             uncleanly; in some cases it ends too, as soon as the others have its history
kill-copier  a broker is killed while it copies a segment to the tier
ghost-fetch  a follower loses its power, comes back with fewer records and without its leader, and Fetch requests of
             its earlier process arrive once more (KIP-903)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

import trio

from kbroker.client.streaming import ConnectionClosed
from kbroker.testing.cluster import MemoryCluster, MemoryNode
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.frames import FrameFault
from kbroker.testing.plan import REQUESTS, Act
from kbroker.tiered.api import RemoteLogSegmentMetadata
from wire.messages.elect_leaders import ElectLeadersRequest
from wire.messages.fetch import FetchRequest

FAR_AHEAD_MS: Final = 30 * 86_400_000
"""The jump of a clock that is longer than `retention.ms`."""
ASK_MS: Final = 5_000
_POLL_S: Final = 0.1
LOOK_S: Final = 0.01
STEP_S: Final = 20
"""Longer than the time-outs after which a replica leaves the ISR, and a broker is fenced."""
SLOW_MS: Final = 1_000
_STEP_MS: Final = 1_000
_ALONE_MS: Final = 3_000
"""In this time the others copy segments to the tier that the replica does not have."""
_FETCHED_S: Final = 0.3
_REPEATED: Final = 10

End = Callable[[], Awaitable[None]]
Begin = Callable[[MemoryCluster, Act], Awaitable[End | None]]


async def revive(node: MemoryNode) -> None:
    """Start a node unless it runs. If it fails to start, it stays down until the end of the run, which tries again.

    A clock that is far ahead is set right before: a broker that starts believes it, and deletes by age, as Kafka does.
    """
    if not node.is_running:
        while node.wall_jump_ms > FAR_AHEAD_MS // 2:
            node.jump(-FAR_AHEAD_MS)
        node.disk.heal()
        await node.start(waits=False)


def may_lose_power(cluster: MemoryCluster, node: MemoryNode) -> bool:
    """Whether no acknowledged record has its only safe copy on this node."""
    if syncs_all(cluster):
        return True
    for topic in cluster.image.topics_by_name.values():
        for partition in topic.partitions.values():
            if node.id in partition.isr and not any(
                other != node.id and cluster.nodes[other].is_serving for other in partition.isr
            ):
                return False
    return True


def syncs_all(cluster: MemoryCluster) -> bool:
    """Whether every record is synced before it is acknowledged."""
    return cluster.settings_of(cluster.controller).log.log_flush_interval_messages == 1


async def nothing() -> None:
    """The end of an act that is over at once."""


async def stop(node: MemoryNode) -> None:
    """Stop a node cleanly, or end it after the deadline of a service manager."""
    with trio.move_on_after(30):
        await node.stop()
    await node.kill()


async def ask(cluster: MemoryCluster, request: Any) -> bool:
    """Ask a broker that serves; whether it answered."""
    serving = [node for node in cluster.brokers if node.is_serving]
    if not serving:
        return False
    with trio.move_on_after(ASK_MS / 1000) as scope:
        try:
            await cluster.ask(serving[0], request)
        except (OSError, ConnectionClosed):
            return False
    return not scope.cancelled_caught


async def elect_preferred(cluster: MemoryCluster) -> bool:
    """Ask for the preferred leader of every partition; whether a broker answered."""
    return await ask(cluster, ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=ASK_MS))


async def _black_out(cluster: MemoryCluster, act: Act) -> End | None:
    """All nodes lose their power at once."""
    if not syncs_all(cluster):
        return None
    async with trio.open_nursery() as nursery:
        for node in cluster.nodes.values():
            nursery.start_soon(partial(node.kill, loss=Loss(act.values["loss"])))

    async def end() -> None:
        for node in cluster.nodes.values():
            await revive(node)

    return end


async def _overtake(cluster: MemoryCluster, act: Act) -> End | None:
    lossy = [
        (name, index)
        for name, topic in cluster.image.topics_by_name.items()
        if cluster.image.topic_configs(name).get("unclean.leader.election.enable") == "true"
        for index in topic.partitions
    ]
    if not lossy:
        return None
    turn = act.values["turn"]
    partition = lossy[turn % len(lossy)]
    replicas = cluster.partition(*partition).replicas
    chosen = cluster.nodes[replicas[turn % len(replicas)]]
    others = [node for node in cluster.brokers if node is not chosen]
    cluster.network.isolate(chosen.host, *(node.host for node in others))
    await poll(lambda: chosen.id not in cluster.partition(*partition).isr)
    await trio.sleep((act.for_ms + _ALONE_MS) / 1000)
    for node in others:
        await node.kill()
    for node in others:
        cluster.network.mend(chosen.host, node.host, both_ways=True)
    await poll(lambda: cluster.partition(*partition).leader == chosen.id)

    async def end() -> None:
        for node in others:
            await revive(node)
        if act.values["ends"]:
            await poll(lambda: len(cluster.partition(*partition).isr) == len(replicas))
            await chosen.kill()
            await poll(lambda: cluster.partition(*partition).leader not in (-1, chosen.id))
            await revive(chosen)

    return end


async def _kill_copier(cluster: MemoryCluster, _act: Act) -> End | None:
    copiers: list[int] = []

    def note(node: int, operation: str, _segment: RemoteLogSegmentMetadata) -> None:
        if operation == "copy":
            copiers.append(node)

    cluster.store.watchers.append(note)
    cluster.store.slow(SLOW_MS)
    await poll(lambda: bool(copiers))
    cluster.store.watchers.remove(note)
    cluster.store.slow(0)
    if not copiers:
        return None
    node = cluster.nodes[copiers[0]]
    await node.kill()
    return lambda: revive(node)


async def _ghost_fetch(cluster: MemoryCluster, act: Act) -> End | None:
    """The producers pause, so that the follower has reached the high watermark in its earlier life."""
    node, network = cluster.nodes[act.nodes[0]], cluster.network
    if not node.is_serving:
        return None
    session_ms = cluster.settings_of(node).metadata.broker_session_timeout_ms
    silence = FrameFault("delay", REQUESTS["produce"], is_from_node=False, delay_ms=session_ms + 4 * _STEP_MS, times=-1)
    network.frame_faults.append(silence)
    await trio.sleep(_STEP_MS / 1000)
    # New connections begin with whole requests; a leader refuses an incremental one that arrives again.
    network.repeat(node, FetchRequest, after_ms=session_ms + 2 * _STEP_MS, times=_REPEATED)
    network.reset(node)
    await trio.sleep(_FETCHED_S)
    faults = [silence]
    if node.is_running and may_lose_power(cluster, node):
        await node.kill(loss=Loss.ONLY_SYNCED)
        # Its new requests come later. The controller takes it back when the session of its earlier life has ended.
        faults += [
            FrameFault("delay", REQUESTS["fetch"], node.host, other.host, delay_ms=session_ms + 4 * _STEP_MS, times=-1)
            for other in cluster.brokers
        ]
        network.frame_faults += faults[1:]
        await revive(node)
        await trio.sleep((session_ms + 3 * _STEP_MS) / 1000)

    async def end() -> None:
        network.frame_faults[:] = [fault for fault in network.frame_faults if fault not in faults]

    return end


async def poll(condition: Callable[[], bool], *, each_s: float = _POLL_S) -> None:
    """Wait until it is true, but not for ever: another act may prevent it."""
    with trio.move_on_after(STEP_S):
        while not condition():  # noqa: ASYNC110 - many nodes may make it true
            await trio.sleep(each_s)


COMPOSED_ACTS: Final[dict[str, Begin]] = {
    "blackout": _black_out,
    "overtake": _overtake,
    "kill-copier": _kill_copier,
    "ghost-fetch": _ghost_fetch,
}
