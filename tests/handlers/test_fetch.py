from uuid import UUID

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kbroker.testing.disk import Fault
from kbroker.testing.disk_nodes import Loss
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from tests.handlers.asking import (
    ONE,
    batch,
    create_topic,
    delete_records,
    delete_topic,
    fetch_in_background,
    fetching,
    fill,
    list_offset,
    parts,
    produce,
    read_batches,
    sizes,
    values,
    wanted,
)
from wire.errors import ErrorCode
from wire.types import ZERO_UUID

# Versions and shapes


@pytest.mark.parametrize("version", range(4, 18))
async def test_every_version_reads_records_and_offsets(client: Client, version: int) -> None:
    topic: str | UUID = await create_topic(client, "t")
    await produce(client, "t", batch(b"a", b"b"))
    if version < 13:
        topic = "t"
    epoch = None if version < 15 else -1
    part = parts(await client.ask(fetching(topic, wanted(), replica_epoch=epoch), version=version))[0]
    assert (part.error_code, part.high_watermark, part.last_stable_offset) == (0, 2, 2)
    assert part.log_start_offset == (0 if version >= 5 else -1)
    assert part.aborted_transactions is None
    assert part.preferred_read_replica == -1
    assert values(part) == [b"a", b"b"]


async def test_read_committed_has_a_list_of_aborted_transactions(client: Client) -> None:
    await create_topic(client, "t")
    await produce(client, "t", batch(b"a"))
    part = parts(await client.ask(fetching("t", wanted(), read_committed=True), version=12))[0]
    assert part.aborted_transactions == []
    assert values(part) == [b"a"]


async def test_an_offset_inside_a_batch_returns_the_whole_batch(client: Client) -> None:
    await create_topic(client, "t")
    await produce(client, "t", batch(b"a", b"b", b"c"))
    part = parts(await client.ask(fetching("t", wanted(offset=2)), version=12))[0]
    assert [(one.base_offset, one.record_count) for one in read_batches(part)] == [(0, 3)]


@pytest.mark.parametrize(("offset", "code"), [(0, 1), (1, 1), (2, 0), (3, 0), (4, 0), (5, 1), (-1, 1), (2**63 - 1, 1)])
@pytest.mark.parametrize("version", [4, 12])
async def test_r13_offsets_from_the_start_to_the_end_are_in_range(
    client: Client, offset: int, code: int, version: int
) -> None:
    await create_topic(client, "t")
    await fill(client, "t", 4)
    await delete_records(client, "t", 2)
    part = parts(await client.ask(fetching("t", wanted(offset=offset), max_wait_ms=10_000), version=version))[0]
    assert part.error_code == code
    if code:
        assert (part.high_watermark, part.last_stable_offset) == (-1, -1)
        assert part.log_start_offset == -1
        assert part.records == b"", "empty, not null"
        assert trio.current_time() == 0, "an error is answered at once"


@pytest.mark.parametrize("version", [9, 12, 16])
@pytest.mark.parametrize(
    ("epoch", "code"),
    [(-1, 0), (-7, 0), (0, 0), (1, ErrorCode.UNKNOWN_LEADER_EPOCH)],
)
async def test_r13_the_leader_epoch_is_compared(client: Client, version: int, epoch: int, code: int) -> None:
    topic: str | UUID = await create_topic(client, "t")
    topic = topic if version >= 13 else "t"
    asked = wanted(current_leader_epoch=epoch)
    replica_epoch = None if version < 15 else -1
    part = parts(await client.ask(fetching(topic, asked, replica_epoch=replica_epoch), version=version))[0]
    assert part.error_code == code
    assert part.current_leader is None


async def test_r13_an_old_epoch_is_fenced_with_leader_from_version_16(client: Client, broker: MemoryBroker) -> None:
    topic_id = await create_topic(client, "t")
    async with memory_broker(broker.disk.crash(Loss.PROCESS_DEATH)) as again:
        client = await again.connect()
        asked = wanted(current_leader_epoch=0)
        part = parts(await client.ask(fetching("t", asked), version=12))[0]
        assert (part.error_code, part.current_leader) == (ErrorCode.FENCED_LEADER_EPOCH, None)
        answer = await client.ask(fetching(topic_id, asked, replica_epoch=-1), version=16)
        leader = parts(answer)[0].current_leader
        assert leader is not None
        assert leader.leader_id == 1
        assert leader.leader_epoch > 0
        assert [(node.node_id, node.host, node.port) for node in answer.node_endpoints] == [(1, "broker.example", 9092)]


@pytest.mark.parametrize(
    ("last_epoch", "offset", "code", "diverging"),
    [(0, 3, 0, None), (0, 4, 1, None), (7, 0, 1, None), (-1, 3, 0, None), (-9, 3, 0, None)],
)
async def test_a_last_fetched_epoch_is_checked_before_the_offset(
    client: Client, last_epoch: int, offset: int, code: int, diverging: object
) -> None:
    await create_topic(client, "t")
    await fill(client, "t", 3)
    if (last_epoch, offset) == (0, 4):
        code = 0
        part = parts(await client.ask(fetching("t", wanted(offset=4, last_fetched_epoch=0)), version=12))[0]
        assert part.diverging_epoch is not None
        assert (part.diverging_epoch.epoch, part.diverging_epoch.end_offset) == (0, 3)
        assert part.records == b""
    else:
        part = parts(await client.ask(fetching("t", wanted(offset=offset, last_fetched_epoch=last_epoch)), version=12))[
            0
        ]
        assert part.diverging_epoch is diverging
    assert part.error_code == code


async def test_a_divergence_is_reported_unless_below_the_log_start(client: Client, broker: MemoryBroker) -> None:
    await create_topic(client, "t")
    await fill(client, "t", 3)
    async with memory_broker(broker.disk.crash(Loss.PROCESS_DEATH)) as again:
        client = await again.connect()
        await fill(client, "t", 1)
        (between,) = {(await list_offset(client, "t", -1))[3] - 1}
        assert between > 0, "the restart has started a new epoch"
        asked = [wanted(offset=offset, last_fetched_epoch=between) for offset in (1, 0)]
        part = parts(await client.ask(fetching("t", asked[0]), version=12))[0]
        assert part.diverging_epoch is not None
        assert (part.error_code, part.diverging_epoch.epoch, part.diverging_epoch.end_offset) == (0, 0, 3)
        await delete_records(client, "t", 1)
        part = parts(await client.ask(fetching("t", asked[0]), version=12))[0]
        assert (part.error_code, part.diverging_epoch is None) == (0, False)
        part = parts(await client.ask(fetching("t", asked[1]), version=12))[0]
        assert (part.error_code, part.diverging_epoch) == (ErrorCode.OFFSET_OUT_OF_RANGE, None)


async def test_unknown_partitions_come_last_and_fail_alone(client: Client) -> None:
    await create_topic(client, "t")
    await fill(client, "t", 1)
    answer = await client.ask(fetching("t", wanted(5), wanted(0), wanted(-1)), version=12)
    assert [(index, part.error_code) for index, part in parts(answer).items()] == [(0, 0), (5, 3), (-1, 3)]
    assert parts(answer)[5].aborted_transactions == []


@pytest.mark.parametrize("topic_id", [ZERO_UUID, UUID(int=7)])
@pytest.mark.parametrize("session", [(0, -1), (0, 0)])
async def test_an_unknown_topic_id_fails_alone(client: Client, topic_id: UUID, session: tuple[int, int]) -> None:
    answer = await client.ask(fetching(topic_id, wanted(), session=session, replica_epoch=-1, max_wait_ms=9000))
    assert answer.error_code == 0
    assert parts(answer)[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    assert answer.responses[0].topic_id == topic_id
    assert trio.current_time() == 0


async def test_old_versions_get_another_code_for_storage_errors() -> None:
    async with memory_broker(stops_cleanly=False) as broker:
        client = await broker.connect()
        await create_topic(client, "t")
        assert broker.node.broker is not None
        broker.node.broker.replicas.directory.state.fail(OSError(5, "the disk is gone"))
        for version, code in ((5, ErrorCode.NOT_LEADER_OR_FOLLOWER), (6, ErrorCode.KAFKA_STORAGE_ERROR)):
            assert parts(await client.ask(fetching("t", wanted()), version=version))[0].error_code == code


# Sizes


@pytest.mark.parametrize(
    ("max_bytes", "limit", "expected"),
    [
        pytest.param(1 << 30, 1 << 30, [4, 4, 0], id="everything"),
        pytest.param(0, 0, [1, 0, 0], id="at least one batch, of the first partition that has one"),
        pytest.param(1 << 30, 1, [1, 0, 0], id="a small limit of a partition"),
        pytest.param(1 << 30, 2 * ONE + 1, [2, 2, 0], id="whole batches within the limit of a partition"),
        pytest.param(3 * ONE, 1 << 30, [3, 0, 0], id="one budget for all"),
        pytest.param(6 * ONE - 1, 1 << 30, [4, 1, 0], id="the rest of the budget"),
        pytest.param(ONE - 1, 1 << 30, [1, 0, 0], id="the budget is passed once"),
        pytest.param(-5, -5, [1, 0, 0], id="negative limits are 0"),
    ],
)
async def test_limits_apply_to_whole_batches_except_the_first(
    client: Client, max_bytes: int, limit: int, expected: list[int]
) -> None:
    await create_topic(client, "t", partitions=3)
    for partition in (0, 1):
        await fill(client, "t", 4, partition=partition)
    asked = [wanted(index, limit=limit) for index in range(3)]
    answer = await client.ask(fetching("t", *asked, max_bytes=max_bytes), version=12)
    assert [size // ONE for size in sizes(answer).values()] == expected
    assert all(size % ONE == 0 for size in sizes(answer).values())


async def test_the_byte_budget_is_used_in_request_order(client: Client) -> None:
    await create_topic(client, "t", partitions=3)
    for partition in range(3):
        await fill(client, "t", 1, partition=partition)
    answer = await client.ask(fetching("t", wanted(2), wanted(0), wanted(1), max_bytes=2 * ONE), version=12)
    assert sizes(answer) == {2: ONE, 0: ONE, 1: 0}
    assert list(sizes(answer)) == [2, 0, 1]


async def test_fetch_max_bytes_of_the_broker_bounds_a_fetch() -> None:
    async with memory_broker(settings={"fetch.max.bytes": 1024}) as broker:
        client = await broker.connect()
        await create_topic(client, "t")
        await fill(client, "t", 20)
        answer = await client.ask(fetching("t", wanted(), max_bytes=2**31 - 1), version=12)
        assert sizes(answer)[0] == 1024 // ONE * ONE


# Waiting


async def test_a_fetch_below_min_bytes_ends_after_max_wait_ms(client: Client) -> None:
    await create_topic(client, "t")
    await fill(client, "t", 1)
    answer = await client.ask(fetching("t", wanted(), max_wait_ms=5_000, min_bytes=ONE + 1), version=12)
    assert sizes(answer) == {0: ONE}
    assert trio.current_time() == 5.0


@pytest.mark.parametrize(("max_wait_ms", "min_bytes"), [(0, 1000), (-1, 1000), (5_000, 0)])
async def test_a_fetch_that_need_not_wait_is_answered_immediately(
    client: Client, max_wait_ms: int, min_bytes: int
) -> None:
    await create_topic(client, "t")
    await client.ask(fetching("t", wanted(), max_wait_ms=max_wait_ms, min_bytes=min_bytes), version=12)
    assert trio.current_time() == 0


async def test_an_append_wakes_a_fetch_at_min_bytes(broker: MemoryBroker, client: Client) -> None:
    await create_topic(client, "t", partitions=2)
    async with trio.open_nursery() as nursery:
        request = fetching("t", wanted(0), wanted(1), max_wait_ms=60_000, min_bytes=2 * ONE)
        answers = await fetch_in_background(nursery, broker, request)
        await trio.sleep(1)
        await fill(client, "t", 1, partition=1)
        await wait_all_tasks_blocked()
        assert not answers
        await fill(client, "t", 1, partition=0)
    ((time, answer),) = answers
    assert (time, sizes(answer)) == (1.0, {0: ONE, 1: ONE})


async def test_more_than_max_bytes_is_not_waited_for(broker: MemoryBroker, client: Client) -> None:
    await create_topic(client, "t")
    async with trio.open_nursery() as nursery:
        request = fetching("t", wanted(), max_wait_ms=60_000, min_bytes=1 << 30, max_bytes=ONE)
        answers = await fetch_in_background(nursery, broker, request)
        await fill(client, "t", 1)
    assert [(time, sizes(answer)) for time, answer in answers] == [(0.0, {0: ONE})]


async def test_an_unknown_partition_does_not_end_the_wait(broker: MemoryBroker, client: Client) -> None:
    await create_topic(client, "t")
    async with trio.open_nursery() as nursery:
        answers = await fetch_in_background(nursery, broker, fetching("t", wanted(9), wanted(0), max_wait_ms=500))
    ((time, answer),) = answers
    assert time == 0.5
    assert [(index, part.error_code) for index, part in parts(answer).items()] == [(0, 0), (9, 3)]


async def test_deleting_the_topic_ends_the_wait(broker: MemoryBroker, client: Client) -> None:
    await create_topic(client, "t")
    async with trio.open_nursery() as nursery:
        answers = await fetch_in_background(nursery, broker, fetching("t", wanted(), max_wait_ms=60_000))
        await delete_topic(client, "t")
    ((time, answer),) = answers
    assert (time, parts(answer)[0].error_code) == (0.0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


async def test_d8_a_failing_disk_ends_the_wait(client: Client) -> None:
    async with memory_broker(stops_cleanly=False) as broker, trio.open_nursery() as nursery:
        client = await broker.connect()
        await create_topic(client, "t")
        await create_topic(client, "synced", settings={"flush.messages": 1})
        answers = await fetch_in_background(nursery, broker, fetching("t", wanted(), max_wait_ms=60_000))
        broker.disk.inject(Fault(5, name="sync", path="*/synced-0/*"))
        assert (await produce(client, "synced", batch(b"v"))).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        await wait_all_tasks_blocked()
        ((_, answer),) = answers
        assert parts(answer)[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_fetch_from_an_older_segment_does_not_wait(client: Client) -> None:
    await create_topic(client, "t", settings={"segment.bytes": 1 << 20})
    for _ in range(3):
        await produce(client, "t", batch(bytes(500_000)))
    answer = await client.ask(fetching("t", wanted(limit=1 << 30), max_wait_ms=60_000, min_bytes=1 << 25), version=12)
    assert trio.current_time() == 0
    assert [one.base_offset for one in read_batches(parts(answer)[0])] == [0, 1]


async def test_closing_the_connection_ends_its_wait(broker: MemoryBroker) -> None:
    client = await broker.connect()
    await create_topic(client, "t")
    waiting = await broker.connect()
    await waiting.send(fetching("t", wanted(), max_wait_ms=60_000), version=12)
    await wait_all_tasks_blocked()
    assert broker.node.broker is not None
    purgatory = broker.node.broker.purgatory
    assert purgatory.waiting(("t", 0)) == 1
    waiting.close()
    await wait_all_tasks_blocked()
    assert purgatory.waiting(("t", 0)) == 0
    assert trio.current_time() == 0


# Replicas


@pytest.mark.parametrize(
    ("replica_id", "epoch", "code"),
    [
        (5, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (5, 0, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (1, -1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (1, 0, ErrorCode.UNKNOWN_LEADER_EPOCH),
        (-2, -1, 0),
        (-3, -1, 0),
    ],
)
async def test_a_replica_that_is_not_a_follower_is_refused(
    client: Client, replica_id: int, epoch: int, code: int
) -> None:
    topic_id = await create_topic(client, "t")
    asked = wanted(current_leader_epoch=epoch)
    assert parts(await client.ask(fetching("t", asked, replica_id=replica_id), version=12))[0].error_code == code
    answer = await client.ask(fetching(topic_id, asked, replica_id=replica_id, replica_epoch=-1), version=17)
    part = parts(answer)[0]
    assert part.error_code == code
    assert (part.current_leader is not None) == (code == ErrorCode.NOT_LEADER_OR_FOLLOWER)
    if replica_id >= 0:
        assert answer.node_endpoints == [], "a follower knows the brokers"
