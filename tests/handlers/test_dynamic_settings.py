"""Every dynamic setting takes effect at once, for a topic, all brokers or one broker, until it is deleted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest
import trio

from kbroker.config.catalogue import BROKER as BROKER_KEYS
from kbroker.config.catalogue import TOPIC as TOPIC_KEYS
from kbroker.config.settings import Dynamic, Effect, declarations
from kbroker.config.tls import TlsSettings
from kbroker.replication.partition import Partition
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from tests.handlers.asking import (
    BROKER,
    ONE,
    TOPIC,
    alter_configs,
    batch,
    create_topic,
    fetching,
    list_offset,
    new_producer,
    parts,
    produce,
    read_batches,
    wanted,
)
from tests.handlers.test_configs import DEFAULT, alter, describe
from wire.compression import Codec
from wire.errors import ErrorCode

LOOKS_MS = 1_000
"""The interval of the retention task in these tests."""


@dataclass
class Rig:
    """A broker with topic t, and the state that the checks read."""

    broker: MemoryBroker
    client: Client

    @property
    def partition(self) -> Partition:
        assert self.broker.node.broker is not None
        return self.broker.node.broker.find("t", 0)

    @property
    def segments(self) -> int:
        return len(tuple(self.partition.log.segments))

    def batch(self, *, size: int = 100, after_ms: int = 0) -> bytes:
        return batch(b"x" * size, timestamp=self.broker.env.timestamp_ms() + after_ms)

    async def append(self, count: int = 1, *, size: int = 100) -> None:
        for _ in range(count):
            assert (await produce(self.client, "t", self.batch(size=size))).error_code == 0

    async def code(self, records: bytes) -> int:
        return (await produce(self.client, "t", records)).error_code

    def deleted_files(self) -> list[str]:
        return [path for path in self.broker.files() if path.endswith(".deleted")]


async def refuses_large_batches(rig: Rig) -> bool:
    return await rig.code(rig.batch(size=2_000)) == ErrorCode.MESSAGE_TOO_LARGE


async def refuses_the_future(rig: Rig) -> bool:
    return await rig.code(rig.batch(after_ms=2_000)) == ErrorCode.INVALID_TIMESTAMP


async def refuses_the_past(rig: Rig) -> bool:
    return await rig.code(rig.batch(after_ms=-2_000)) == ErrorCode.INVALID_TIMESTAMP


async def stamps_records_itself(rig: Rig) -> bool:
    return (await produce(rig.client, "t", rig.batch())).log_append_time_ms == rig.broker.env.timestamp_ms()


async def wants_keys(rig: Rig) -> bool:
    return await rig.code(rig.batch()) == ErrorCode.INVALID_RECORD


def stores_as(codec: Codec) -> Callable[[Rig], Awaitable[bool]]:
    async def check(rig: Rig) -> bool:
        offset = rig.partition.log.log_end_offset
        await rig.append()
        answer = await rig.client.ask(fetching("t", wanted(offset=offset)), version=12)
        return read_batches(parts(answer)[0])[0].codec is codec

    return check


async def rolls_by_size(rig: Rig) -> bool:
    before = rig.segments
    await rig.append(6)
    return rig.segments > before


async def rolls_by_age(rig: Rig) -> bool:
    before = rig.segments
    for _ in range(2):
        await rig.append()
        await trio.sleep(2)
    return rig.segments > before


async def rolls_by_its_index(rig: Rig) -> bool:
    before = rig.segments
    await rig.append(8, size=5_000)
    return rig.segments > before


async def indexes_each_batch(rig: Rig) -> bool:
    before = rig.partition.log.segments.active.offset_index.entries
    await rig.append(5)
    return rig.partition.log.segments.active.offset_index.entries == before + 5


async def syncs_each_append(rig: Rig) -> bool:
    await rig.append()
    return rig.partition.log.recovery_point == rig.partition.log.log_end_offset


async def syncs_after_a_while(rig: Rig) -> bool:
    await rig.append()
    await trio.sleep(5)
    return rig.partition.log.recovery_point == rig.partition.log.log_end_offset


async def deletes_old_records(rig: Rig) -> bool:
    before = rig.partition.log.log_start_offset
    await rig.append(4)
    await trio.sleep(5)
    return rig.partition.log.log_start_offset > before


async def removes_deleted_files_soon(rig: Rig) -> bool:
    """The files of a deleted segment stay for a minute by default."""
    await trio.sleep(100)
    log = rig.partition.log
    await rig.append(2)
    log.roll(timestamp_ms=rig.broker.env.timestamp_ms())
    assert log.raise_log_start_offset(log.log_end_offset)
    await trio.sleep(4)
    assert rig.deleted_files()
    await trio.sleep(20)
    return not rig.deleted_files()


async def forgets_silent_producers(rig: Rig) -> bool:
    producer = await new_producer(rig.client)
    records = batch(
        b"v", timestamp=rig.broker.env.timestamp_ms(), producer_id=producer, producer_epoch=0, base_sequence=0
    )
    assert await rig.code(records) == 0
    await trio.sleep(5)
    return producer not in rig.partition.log.producers.producers


async def wants_two_replicas(rig: Rig) -> bool:
    """With one replica, records are accepted anyway, as in Kafka; so check the value."""
    await rig.append()
    progress = rig.partition.progress
    assert progress is not None
    return progress.min_insync_replicas == 2


Check = Callable[[Rig], Awaitable[bool]]

# Topic's key, brokers' key, a value, and the check for its effect.
EFFECTS: list[tuple[str | None, str, object, Check]] = [
    ("max.message.bytes", "message.max.bytes", 1_000, refuses_large_batches),
    ("message.timestamp.after.max.ms", "log.message.timestamp.after.max.ms", 1_000, refuses_the_future),
    ("message.timestamp.before.max.ms", "log.message.timestamp.before.max.ms", 1_000, refuses_the_past),
    ("message.timestamp.type", "log.message.timestamp.type", "LogAppendTime", stamps_records_itself),
    ("cleanup.policy", "log.cleanup.policy", "compact", wants_keys),
    ("compression.type", "compression.type", "zstd", stores_as(Codec.ZSTD)),
    ("compression.type", "compression.type", "gzip", stores_as(Codec.GZIP)),
    ("compression.type", "compression.type", "lz4", stores_as(Codec.LZ4)),
    ("compression.type", "compression.type", "snappy", stores_as(Codec.SNAPPY)),
    ("segment.bytes", "log.segment.bytes", 3 * ONE, rolls_by_size),
    ("segment.ms", "log.roll.ms", 1_000, rolls_by_age),
    ("segment.index.bytes", "log.index.size.max.bytes", 40, rolls_by_its_index),
    ("index.interval.bytes", "log.index.interval.bytes", 0, indexes_each_batch),
    ("flush.messages", "log.flush.interval.messages", 1, syncs_each_append),
    ("flush.ms", "log.flush.interval.ms", 1_000, syncs_after_a_while),
    ("retention.ms", "log.retention.ms", 1_000, deletes_old_records),
    ("retention.bytes", "log.retention.bytes", 2 * ONE, deletes_old_records),
    ("file.delete.delay.ms", "log.segment.delete.delay.ms", 1_000, removes_deleted_files_soon),
    ("min.insync.replicas", "min.insync.replicas", 2, wants_two_replicas),
    (None, "producer.id.expiration.ms", 1_000, forgets_silent_producers),
]
WHERE = {"topic": (TOPIC, "t"), "all brokers": (BROKER, ""), "this broker": (BROKER, "1")}


@pytest.mark.parametrize(
    ("kind", "name", "key", "value", "check"),
    [
        pytest.param(kind, name, key, value, check, id=f"{where}: {key}={value}")
        for topic_key, broker_key, value, check in EFFECTS
        for where, (kind, name) in WHERE.items()
        if (key := topic_key if kind == TOPIC else broker_key) is not None
    ],
)
async def test_a_setting_takes_effect_at_once_until_it_is_deleted(
    kind: int, name: str, key: str, value: object, check: Check
) -> None:
    settings: dict[str, object] = {"log.retention.check.interval.ms": LOOKS_MS}
    if check is deletes_old_records:
        settings["log.segment.bytes"] = 3 * ONE  # only closed segments are deleted
    async with memory_broker(settings=settings) as broker:
        rig = Rig(broker, await broker.connect())
        await create_topic(rig.client, "t")
        assert not await check(rig)
        assert await alter(rig.client, kind, name, key, str(value)) == 0
        assert await check(rig)
        assert await alter(rig.client, kind, name, key, None) == 0
        assert not await check(rig)


# Keys that other tests cover, and where.
SEEN_ELSEWHERE = {
    "max.connections": "tests/handlers/test_dynamic_limits.py",
    "transaction.partition.verification.enable": "tests/handlers/test_transactional_produce.py",
    "group.consumer.assignment.interval.ms": "tests/handlers/test_consumer_group_heartbeat.py",
    **dict.fromkeys(
        (one.name for one in declarations(TlsSettings) if one.dynamic is not Dynamic.READ_ONLY),
        "tests/security/test_secured_process.py: only for one listener, all by one function",
    ),
    "sasl.enabled.mechanisms": "tests/handlers/test_sasl.py",
    "sasl.jaas.config": "tests/handlers/test_sasl.py",
    "sasl.mechanism.inter.broker.protocol": "tests/handlers/test_sasl.py",
    "max.connections.per.ip": "tests/handlers/test_dynamic_limits.py",
    "max.connections.per.ip.overrides": "tests/handlers/test_dynamic_limits.py",
    "max.connection.creation.rate": "tests/handlers/test_dynamic_limits.py",
    "compression.gzip.level": "below",
    "compression.lz4.level": "below",
    "compression.zstd.level": "below",
    "unclean.leader.election.enable": "tests/controller/test_partitions.py: there is no second replica here",
    **dict.fromkeys(
        (
            "log.local.retention.bytes",
            "log.local.retention.ms",
            "local.retention.bytes",
            "local.retention.ms",
            "remote.fetch.max.wait.ms",
            "remote.list.offsets.request.timeout.ms",
            "remote.log.index.file.cache.total.size.bytes",
            "remote.log.manager.copier.thread.pool.size",
            "remote.log.manager.expiration.thread.pool.size",
            "remote.log.manager.follower.thread.pool.size",
            "remote.log.manager.fetch.max.bytes.per.second",
            "remote.log.reader.threads",
        ),
        "tests/broker/test_tier_settings.py",
    ),
    **dict.fromkeys(
        (
            "remote.log.copy.disable",
            "remote.log.delete.on.disable",
            "remote.log.manager.copy.max.bytes.per.second",
            "remote.storage.enable",
        ),
        "tests/broker/test_tier_lifecycle.py",
    ),
    **dict.fromkeys(
        (
            "delete.retention.ms",
            "log.cleaner.backoff.ms",
            "log.cleaner.dedupe.buffer.size",
            "log.cleaner.delete.retention.ms",
            "log.cleaner.io.buffer.load.factor",
            "log.cleaner.io.max.bytes.per.second",
            "log.cleaner.max.compaction.lag.ms",
            "log.cleaner.min.cleanable.ratio",
            "log.cleaner.min.compaction.lag.ms",
            "log.cleaner.threads",
            "max.compaction.lag.ms",
            "min.cleanable.dirty.ratio",
            "min.compaction.lag.ms",
        ),
        "tests/broker/test_cleaner_settings.py",
    ),
    "follower.fetch.last.tiered.offset.enable": "compat/cluster/test_tier_followers.py: needs metadata 4.2",
    "num.replica.fetchers": "tests/broker/test_fetchers.py",
    **dict.fromkeys(
        ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas"),
        "tests/broker/test_fetchers.py",
    ),
    "kbroker.read.only": "tests/cli/test_tier_attach.py",
    "num.recovery.threads.per.data.dir": "tests/test_recovery_processes.py: the next start uses it",
    "segment.jitter.ms": "tests/storage/test_log.py: it is drawn by chance",
    "log.roll.jitter.ms": "tests/storage/test_log.py: it is drawn by chance",
}


def test_every_dynamic_setting_is_tested() -> None:
    tested = {key for effect in EFFECTS for key in effect[:2]} | set(SEEN_ELSEWHERE)
    changeable = [
        one.name
        for one in BROKER_KEYS.values()
        if one.effect is Effect.ENFORCED and one.dynamic is not Dynamic.READ_ONLY
    ]
    of_topics = [one.name for one in TOPIC_KEYS.values() if one.effect is Effect.ENFORCED and not one.internal]
    assert [name for name in (*changeable, *of_topics) if name not in tested] == []


TEXT = b"".join(b"%d of the same, with something new: %d\n" % (number, number * number) for number in range(3_000))
LEVELS = {"gzip": (1, 9), "lz4": (1, 12), "zstd": (1, 19)}


@pytest.mark.parametrize("codec", LEVELS)
@pytest.mark.parametrize("kind", [TOPIC, BROKER])
async def test_the_compression_level_applies_to_stored_batches(client: Client, kind: int, codec: str) -> None:
    await create_topic(client, "t", settings={"compression.type": codec})

    async def stored() -> int:
        offset = (await list_offset(client, "t", -1))[1]
        assert (await produce(client, "t", batch(TEXT))).error_code == 0
        answer = await client.ask(fetching("t", wanted(offset=offset, limit=1 << 30)), version=12)
        return read_batches(parts(answer)[0])[0].size

    low, high = LEVELS[codec]
    sizes = []
    for level in (low, high, low):
        assert await alter(client, kind, "t" if kind == TOPIC else "", f"compression.{codec}.level", str(level)) == 0
        sizes.append(await stored())
    assert sizes[1] != sizes[0] == sizes[2] < len(TEXT) // 2


# Refused changes change nothing


@pytest.mark.parametrize(
    "bad",
    [
        ("retention.bytes", "many"),
        ("segment.bytes", "0"),
        ("compression.zstd.level", "23"),
        ("min.insync.replicas", "0"),
        ("cleanup.policy", "burn"),
        ("remote.storage.enable", "maybe"),
        ("no.such.setting", "1"),
    ],
)
async def test_one_bad_value_of_a_topic_changes_nothing(client: Client, bad: tuple[str, str]) -> None:
    await create_topic(client, "t", settings={"retention.ms": 5000})
    code, text = await alter_configs(
        client, TOPIC, "t", {"retention.ms": "7000", bad[0]: bad[1], "max.message.bytes": "10"}
    )
    assert code == ErrorCode.INVALID_CONFIG
    assert bad[0] in str(text) or "Tiered Storage" in str(text)
    assert await describe(client, TOPIC, "t", "retention.ms") == ("5000", 1)
    assert (await describe(client, TOPIC, "t", "max.message.bytes"))[1] == DEFAULT


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("", "log.retention.ms", "soon"),
        ("", "num.partitions", "3"),
        ("1", "node.id", "3"),
        ("1", "log.dirs", "/elsewhere"),
        ("1", "connections.max.idle.ms", "5"),
        ("1", "listeners", "PLAINTEXT://:1"),
        ("", "max.connections", "-1"),
        ("", "no.such.setting", "1"),
        ("", "ssl.keystore.password", "swordfish"),
        ("", "sasl.jaas.config", "swordfish"),
    ],
)
async def test_one_bad_or_read_only_broker_setting_changes_nothing(
    client: Client, name: str, key: str, value: str
) -> None:
    code, text = await alter_configs(client, BROKER, name, {"message.max.bytes": "5000", key: value})
    assert code == ErrorCode.INVALID_REQUEST
    assert key in str(text)
    assert "swordfish" not in str(text)
    assert await describe(client, BROKER, "1", "message.max.bytes") == ("1048588", DEFAULT)


async def test_k15_a_secret_is_stored_and_never_shown(caplog: pytest.LogCaptureFixture) -> None:
    key = "listener.name.internal.ssl.keystore.password"
    async with memory_broker() as broker:
        client = await broker.connect()
        assert await alter(client, BROKER, "1", key, "swordfish") == 0
        assert await describe(client, BROKER, "1", key) == (None, 2)
        assert await alter(client, BROKER, "1", key, None) == 0
    assert "swordfish" not in caplog.text


async def test_settings_follow_the_order_of_precedence() -> None:
    async with memory_broker(settings={"message.max.bytes": 4_000}) as broker:
        client = await broker.connect()
        await create_topic(client, "t")
        limits = [(TOPIC, "t", "max.message.bytes", 1_000), (BROKER, "1", "message.max.bytes", 2_000)]
        limits += [(BROKER, "", "message.max.bytes", 3_000)]

        async def limit() -> int:
            """The size of the largest accepted batch, in steps of 500 bytes."""
            found = 0
            for size in range(500, 4_500, 500):
                if (await produce(client, "t", batch(b"x" * (size - 200)))).error_code == 0:
                    found = size
            return found

        assert await limit() == 4_000
        for kind, name, key, value in reversed(limits):
            assert await alter(client, kind, name, key, str(value)) == 0
            assert await limit() == value
        for (kind, name, key, _), falls_to in zip(limits, (2_000, 3_000, 4_000), strict=True):
            assert await alter(client, kind, name, key, None) == 0
            assert await limit() == falls_to
