"""Acts of several steps against transactions; see `kbroker.testing.composed_acts`.

kill-coordinator        a coordinator is killed while one of its transactions is in some state; markers are late until
                        then, so that the state lasts
late-markers            a coordinator is replaced while its markers are on their way; they arrive when the producer has
                        begun its next transaction
lose-decision           a coordinator is killed before its followers have a decision to commit; the producer asks its
                        successor so late that the transaction has timed out
restart-in-transaction  the preferred leader of a partition with an open transaction stops cleanly, starts again, and
                        leads again
late-repetition         EndTxn or WriteTxnMarkers arrives once more when a later transaction of its producer is open;
                        only with `transaction.version` 2, where each transaction has an epoch of its own

Producers are slow in some of them, so that transactions stay open. They wait for each answer, so in the others a late
request never meets a later one of its producer, which only `transaction.version` 2 would survive.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, TypeVar

import trio

from kbroker.coordinator.transactions.state import MAX_EPOCH, PREPARED, Transaction, TransactionState
from kbroker.coordinator.transactions.transaction_coordinator import Led
from kbroker.testing.cluster import MemoryCluster, MemoryNode
from kbroker.testing.composed_acts import (
    LOOK_S,
    SLOW_MS,
    STEP_S,
    Begin,
    End,
    elect_preferred,
    nothing,
    poll,
    revive,
    stop,
)
from kbroker.testing.frames import FrameFault
from kbroker.testing.model_router import REQUEST_MS
from kbroker.testing.plan import REQUESTS, TRANSACTION_REQUESTS, Act
from wire.codec import decode
from wire.framing import decode_request_header
from wire.messages.end_txn import EndTxnRequest
from wire.messages.write_txn_markers import WriteTxnMarkersRequest

T = TypeVar("T")

_MARKERS: Final = TRANSACTION_REQUESTS["write_txn_markers"]
_END: Final = TRANSACTION_REQUESTS["end_txn"]
_TRIES: Final = 4
_SENT_S: Final = 0.2
"""In this time a decision is replicated, and its markers are sent."""
_LATE_MS: Final = 5_000
_SLOW_SEND_MS: Final = 1_500
_LATE_END_MS: Final = 700
_LATEST: Final = 12
"""Requests that may arrive again; those before them are too old to look at each time."""
_SIZE_BYTES: Final = 4
_SLOW_FETCH_MS: Final = 1_000
"""Less than the time after which a follower leaves the ISR."""


@contextmanager
def _struck(cluster: MemoryCluster, *faults: FrameFault) -> Iterator[None]:
    """These faults apply within the block."""
    known = cluster.network.frame_faults
    known += faults
    try:
        yield
    finally:
        known[:] = [fault for fault in known if not any(fault is one for one in faults)]


def _late(
    api_key: int, ms: int, sender: str = "", receiver: str = "", *, is_from_node: bool | None = None
) -> FrameFault:
    return FrameFault("delay", api_key, sender, receiver, delay_ms=ms, times=-1, is_from_node=is_from_node)


def _led(node: MemoryNode) -> list[Led]:
    return list(node.broker.transactions.led.values()) if node.is_serving else []


async def _coordinator(
    cluster: MemoryCluster, states: Container[TransactionState], *, partitions: int = 0
) -> tuple[MemoryNode, int, Transaction] | None:
    """The first broker with a transaction in one of these states, its coordinator epoch, and the transaction.

    Shape  it has at least so many partitions
    """
    found: list[tuple[MemoryNode, int, Transaction]] = []

    def look() -> bool:
        found.extend(
            (node, led.leader_epoch, one)
            for node in cluster.brokers
            for led in _led(node)
            for one in led.shard.transactions.values()
            if one.state in states and len(one.partitions) >= partitions
        )
        return bool(found)

    await poll(look, each_s=LOOK_S)
    return found[0] if found else None


async def _kill_coordinator(cluster: MemoryCluster, act: Act) -> End | None:
    with _struck(cluster, _late(_MARKERS, SLOW_MS)):
        found = await _coordinator(cluster, (TransactionState[act.values["state"]],))
    if found is None:
        return None
    node = found[0]
    await node.kill()
    return lambda: revive(node)


async def _late_markers(cluster: MemoryCluster, _act: Act) -> End | None:
    with _struck(cluster, _late(_MARKERS, SLOW_MS)):
        found = await _coordinator(cluster, PREPARED)
        await trio.sleep(_SENT_S)
    if found is None or not found[0].is_serving:
        return None
    node, epoch, ended = found
    await stop(node)
    others = [other.host for other in cluster.brokers if other is not node]
    for other in others:
        cluster.network.cut(node.host, other)
    with _struck(cluster, _late(REQUESTS["produce"], _SLOW_SEND_MS, is_from_node=False)):
        await poll(lambda: _has_begun_again(cluster, ended, epoch), each_s=LOOK_S)
        for other in others:
            cluster.network.mend(node.host, other)
        await trio.sleep(SLOW_MS / 1000)
    return lambda: revive(node)


def _has_begun_again(cluster: MemoryCluster, ended: Transaction, coordinator_epoch: int) -> bool:
    """Whether another coordinator has ended a transaction in a partition, where the producer's next one is open."""
    for node in cluster.brokers:
        for partition in ended.partitions:
            if (replica := node.replica(*partition)) is not None and replica.is_leader:
                entry = replica.log.producers.producers.get(ended.producer_id)
                if entry is None or entry.coordinator_epoch <= coordinator_epoch:
                    continue
                if entry.current_txn_first_offset >= 0:
                    return True
    return False


async def _lose_decision(cluster: MemoryCluster, _act: Act) -> End | None:
    found = None
    # The followers ask slowly when the decision is made, because the end of the transaction comes late.
    with _struck(cluster, _late(_END, _LATE_END_MS, is_from_node=False)):
        for _ in range(_TRIES):
            coordinator = await _coordinator(cluster, (TransactionState.ONGOING,), partitions=2)
            if coordinator is None:
                return None
            node = coordinator[0]
            others = [other.host for other in cluster.brokers if other is not node]
            fetches = [_late(REQUESTS["fetch"], _SLOW_FETCH_MS, other, node.host) for other in others]
            # So not all partitions learn what the coordinator has decided, even if it tells them at once.
            with _struck(cluster, *fetches, _late(_MARKERS, _LATE_MS, node.host, others[-1])):
                found = await _lasting(partial(_undecided, node), within_s=_LATE_MS / 1000)
                if found is not None:
                    await node.kill()
                    break
    if found is None:
        return None
    name = found[0]
    with _struck(cluster, _late(_END, REQUEST_MS - SLOW_MS, is_from_node=False)):
        await poll(lambda: any(_is_over(name, led) for other in cluster.brokers for led in _led(other)))
    return lambda: revive(node)


def _is_over(transactional_id: str, led: Led) -> bool:
    known = led.shard.transactions.get(transactional_id)
    return known is not None and known.state is not TransactionState.ONGOING


def _undecided(node: MemoryNode) -> tuple[str, int] | None:
    """A transactional id with a decision to commit that followers lack, and its coordinator's high watermark."""
    for led in _led(node):
        if led.outcome(led.partition.log.log_end_offset) is None:
            for name, one in led.shard.transactions.items():
                if one.state is TransactionState.PREPARE_COMMIT and len(one.partitions) > 1:
                    return name, led.partition.known_high_watermark
    return None


async def _restart_in_transaction(cluster: MemoryCluster, _act: Act) -> End | None:
    with _struck(cluster, _late(REQUESTS["produce"], 2 * _SLOW_SEND_MS, is_from_node=False)):
        found = await _lasting(lambda: _open_transaction(cluster))
        if found is None:
            return None
        broker, partition, _ = found
        node = cluster.nodes[broker]
        await stop(node)
        await revive(node)
        await poll(lambda: node.id in cluster.partition(*partition).isr)
        await elect_preferred(cluster)
        await trio.sleep(SLOW_MS / 1000)
    return lambda: revive(node)


def _open_transaction(cluster: MemoryCluster) -> tuple[int, tuple[str, int], int] | None:
    """A preferred replica that leads, its partition, and the first offset of an open transaction in it."""
    for node in cluster.brokers:
        for partition, replica in node.broker.replicas.partitions.items() if node.is_serving else ():
            if replica.is_leader and replica.replicas[0] == node.id:
                for offset in replica.log.producers.open_transactions:
                    return node.id, partition, offset
    return None


async def _repeat_late(cluster: MemoryCluster, act: Act) -> End | None:
    turns, is_end = act.values["turns"], act.values["request"] == "end_txn"
    first = turns if is_end else turns - 1  # a marker has the epoch of the next transaction
    ahead = range(first, first + 1 if turns == 1 else MAX_EPOCH)
    slow = partial(_late, ms=_LATE_END_MS, is_from_node=False)
    kept = slow(_END) if is_end else _late(_MARKERS, 0)
    copies: list[tuple[Any, bytes]] = []
    kept.copies = copies
    is_overtaken = _is_end_overtaken if is_end else _is_marker_overtaken
    found: list[tuple[Any, bytes]] = []

    def look() -> bool:
        found.extend((to, frame) for to, frame in copies[-_LATEST:] if is_overtaken(cluster, to, frame, ahead))
        return bool(found)

    # So the later transaction stays open until readers have seen the effect.
    with _struck(cluster, kept, slow(_END), slow(REQUESTS["produce"])):
        await poll(look, each_s=LOOK_S)
        if not found:
            return None
        cluster.network.serve_again(*found[0])
        await trio.sleep(SLOW_MS / 1000)
    return nothing


def _is_end_overtaken(cluster: MemoryCluster, _connection: Any, frame: bytes, ahead: range) -> bool:
    """Whether the producer of an EndTxn that commits has written to a transaction so many epochs later."""
    request = _decoded(frame, EndTxnRequest)
    return request.committed and any(
        _is_open(node, partition, request, ahead)
        for node in cluster.brokers
        for partition in (node.broker.replicas.partitions if node.is_serving else ())
    )


def _is_marker_overtaken(cluster: MemoryCluster, connection: Any, frame: bytes, ahead: range) -> bool:
    """Whether a transaction so many epochs later is open in a partition that gets one of these markers."""
    node = next(node for node in cluster.brokers if node.host == connection.server)
    return node.is_serving and any(
        _is_open(node, (topic.name, index), marker, ahead)
        for marker in _decoded(frame, WriteTxnMarkersRequest).markers
        for topic in marker.topics
        for index in topic.partition_indexes
    )


def _is_open(node: MemoryNode, partition: tuple[str, int], request: Any, ahead: range) -> bool:
    """Whether a node leads a partition with an open transaction of a request's producer, so many epochs later."""
    replica = node.replica(*partition)
    if replica is None or not replica.is_leader:
        return False
    entry = replica.log.producers.producers.get(request.producer_id)
    if entry is None or entry.current_txn_first_offset < 0:
        return False
    return entry.producer_epoch - request.producer_epoch in ahead


def _decoded(frame: bytes, request: type[T]) -> T:
    header, body = decode_request_header(memoryview(frame)[_SIZE_BYTES:])
    return decode(request, header.api_version, body)


async def _lasting(look: Callable[[], T | None], *, within_s: float = STEP_S) -> T | None:
    """The first thing that is still there a moment later; None if there is none in a time."""
    with trio.move_on_after(within_s):
        while True:
            if (found := look()) is not None:
                await trio.sleep(_SENT_S)
                if look() == found:
                    return found
            await trio.sleep(LOOK_S)
    return None


TRANSACTION_ACTS: Final[dict[str, Begin]] = {
    "kill-coordinator": _kill_coordinator,
    "late-markers": _late_markers,
    "lose-decision": _lose_decision,
    "restart-in-transaction": _restart_in_transaction,
    "late-repetition": _repeat_late,
}
