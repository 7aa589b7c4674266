"""Apache Kafka's own scenarios of tiered storage, run on Kafka and on the broker under test, which must show the same
offsets, the same segments in the same states, and the same retention decisions.
"""

from __future__ import annotations

from compat.tiered.remote_log import COPY_FINISHED, COPY_STARTED, DELETE_FINISHED, DELETE_STARTED, metadata_partition
from compat.tiered.site import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING,
    LATEST,
    LATEST_TIERED,
    ONLY_THE_ACTIVE_ONE,
    TIERED,
    Records,
    Site,
    Sites,
)

INVALID_CONFIG, OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC = 40, 1, 3
COPIED = (COPY_STARTED, COPY_FINISHED)
DELETED = (*COPIED, DELETE_STARTED, DELETE_FINISHED)


def test_offload_and_consume(sites: Sites, name: str) -> None:
    """Segments of one batch and of two; in an idle topic all closed segments are copied (KAFKA-15272)."""
    one = sites.create(f"{name}-one", TIERED, ONLY_THE_ACTIVE_ONE)
    two = sites.create(f"{name}-two", TIERED, ONLY_THE_ACTIVE_ONE)
    sites.produce(one, Records([0, 2, 4]))
    sites.produce(two, Records([0, 0, 2, 2, 4], records=3))
    sites.expect_remote(one, (0, 0), (1, 1))
    sites.expect_remote(two, (0, 5), (6, 11))
    sites.expect_local(one, 2)
    sites.expect_local(two, 12)
    sites.expect_offset(one, EARLIEST_LOCAL, 2)
    sites.expect_offset(one, LATEST_TIERED, 1)
    sites.expect_offset(two, EARLIEST_LOCAL, 12)
    sites.expect_offset(two, LATEST_TIERED, 11)
    sites.expect_all_read(one, 0, 3)
    sites.expect_all_read(two, 0, 15)
    sites.expect_all_read(two, 7, 8)
    for topic in (one, two):
        assert [each.states for each in sites.agree_on_segments(topic)] == [COPIED, COPIED]


def test_tier_records_are_in_kafkas_metadata_partition(sites: Sites, name: str) -> None:
    sites.create(name, TIERED, partitions=3)
    for partition in range(3):
        sites.produce(name, Records([0, 2]), partition=partition)
        sites.expect_remote(name, (0, 0), partition=partition)

    def is_in_its_place(site: Site, partition: int) -> bool:
        topic_id = site.topic_id(name)
        return site.remote.metadata_partitions[topic_id, partition] == {metadata_partition(topic_id, partition, 3)}

    for site in sites.all:
        assert [is_in_its_place(site, partition) for partition in range(3)] == [True] * 3, site.name


def test_enable_on_a_live_topic(sites: Sites, name: str) -> None:
    """KAFKA-15290: existing segments are copied too."""
    sites.create(name, remote_storage_enable="false", segment_ms="3600000", local_retention_bytes="1")
    sites.produce(name, Records([0, 2, 4]))
    sites.expect_offset(name, EARLIEST_LOCAL, 0)
    assert sites.each(lambda site: site.offset(name, LATEST_TIERED)) == (0, -1, -1, -1)
    sites.alter(name, remote_storage_enable="true")
    sites.expect_remote(name, (0, 0), (1, 1))
    sites.produce(name, Records([6, 8]))
    sites.expect_remote(name, (0, 0), (1, 1), (2, 2), (3, 3))
    sites.expect_offset(name, EARLIEST_LOCAL, 4)
    sites.expect_all_read(name, 0, 5)
    sites.agree_on_segments(name)


def test_delete_by_time(sites: Sites, name: str) -> None:
    """Records from 9, 7, 5 and 1 hours ago: six hours of retention delete only the first two segments."""
    sites.create(name, TIERED, ONLY_THE_ACTIVE_ONE)
    ago = Records([0, 2, 4, 8], records=2, start_ms=sites.now_ms() - 9 * 3_600_000)
    sites.produce(name, ago)
    sites.expect_remote(name, (0, 1), (2, 3), (4, 5))
    sites.expect_local(name, 6)
    sites.alter(name, retention_ms=str(6 * 3_600_000), local_retention_ms="-2")
    sites.expect_states(name, DELETED, DELETED, COPIED)
    sites.expect_offset(name, EARLIEST, 4)
    sites.expect(lambda site: site.epochs(name), [(0, 4)])
    assert sites.each(lambda site: site.fetch(name, 3)) == (OFFSET_OUT_OF_RANGE, b"")
    sites.expect_all_read(name, 4, 4)
    sites.alter(name, retention_ms="1000", local_retention_ms="-2")
    sites.expect_offset(name, EARLIEST, 8)
    sites.expect_states(name, DELETED, DELETED, DELETED, DELETED)
    sites.expect_local(name, 8)
    sites.expect(lambda site: site.tier_files(name), [])


def test_delete_by_size(sites: Sites, name: str) -> None:
    """Five segments of one size: retention of three and a half sizes deletes one, of exactly two deletes two more."""
    sites.create(name, TIERED, ONLY_THE_ACTIVE_ONE)
    batches = sites.produce(name, Records([0, 2, 4, 6, 8], records=2, padding=1000))
    size = len(batches[0])
    assert {len(batch) for batch in batches} == {size}
    sites.expect_remote(name, (0, 1), (2, 3), (4, 5), (6, 7))
    sites.expect_local(name, 8)
    sites.alter(name, retention_bytes=str(size * 7 // 2), local_retention_bytes="1")
    sites.expect_states(name, DELETED, COPIED, COPIED, COPIED)
    sites.expect_offset(name, EARLIEST, 2)
    sites.alter(name, retention_bytes=str(size * 2), local_retention_bytes="1")
    sites.expect_states(name, DELETED, DELETED, DELETED, COPIED)
    sites.expect_offset(name, EARLIEST, 6)
    sites.expect(lambda site: site.epochs(name), [(0, 6)])
    sites.expect_all_read(name, 6, 4)


def test_delete_by_start_offset(sites: Sites, name: str) -> None:
    """A segment is deleted when all of it is below the start, not before."""
    sites.create(name, TIERED, ONLY_THE_ACTIVE_ONE)
    sites.produce(name, Records([0, 0, 2, 2, 4]))
    sites.expect_remote(name, (0, 1), (2, 3))
    sites.expect_local(name, 4)
    assert sites.each(lambda site: site.delete_records(name, 3)) == 3
    sites.expect_states(name, DELETED, COPIED)
    sites.expect(lambda site: site.epochs(name), [(0, 3)])
    sites.expect_offset(name, EARLIEST, 3)
    assert sites.each(lambda site: site.fetch(name, 2)) == (OFFSET_OUT_OF_RANGE, b"")
    sites.expect_all_read(name, 3, 2)
    sites.produce(name, Records([4, 6, 6, 8]))
    sites.expect_remote(name, (2, 3), (4, 5), (6, 7))
    assert sites.each(lambda site: site.delete_records(name, 7)) == 7
    sites.expect_states(name, DELETED, DELETED, DELETED, COPIED)
    sites.expect_all_read(name, 7, 2)


def test_delete_topic(sites: Sites, name: str) -> None:
    """KAFKA-15130: nothing is left in the tier."""
    sites.create(name, TIERED, ONLY_THE_ACTIVE_ONE, partitions=2)
    for partition in range(2):
        sites.produce(name, Records([0, 2, 4]), partition=partition)
        sites.expect_remote(name, (0, 0), (1, 1), partition=partition)
    for site in sites.all:
        assert site.tier_files(name), f"{site.name} names its files differently"
        site.delete_topic(name)
    for partition in range(2):
        sites.expect_states(name, DELETED, DELETED, partition=partition)
    sites.expect(lambda site: site.tier_files(name), [])


def test_a_recreated_topic_has_no_old_segments(sites: Sites, name: str) -> None:
    sites.create(name, TIERED, ONLY_THE_ACTIVE_ONE)
    sites.produce(name, Records([0, 2, 4]))
    sites.expect_remote(name, (0, 0), (1, 1))
    for site in sites.all:
        site.delete_topic(name)
    sites.expect(lambda site: site.offset(name, LATEST)[0], UNKNOWN_TOPIC)
    sites.create(name, TIERED, ONLY_THE_ACTIVE_ONE)
    sites.expect_offset(name, EARLIEST, 0)
    assert sites.each(lambda site: site.offset(name, LATEST_TIERED)) == (0, -1, -1, -1)
    assert sites.each(lambda site: site.live(name)) == []
    sites.produce(name, Records([0, 2], records=3))
    sites.expect_remote(name, (0, 2))
    sites.expect_all_read(name, 0, 6)


def test_disable_and_enable(sites: Sites, name: str) -> None:
    """Copying stops and resumes; in between the tier is readable and expires; finally it is deleted."""
    sites.create(name, TIERED, ONLY_THE_ACTIVE_ONE)
    sites.produce(name, Records([0, 2, 4]))
    sites.expect_remote(name, (0, 0), (1, 1))
    sites.expect_offset(name, EARLIEST_LOCAL, 2)
    sites.alter(name, remote_log_copy_disable="true", error=INVALID_CONFIG)
    sites.alter(name, remote_log_copy_disable="true", local_retention_bytes="-2", local_retention_ms="-2")
    sites.expect_all_read(name, 0, 3)
    sites.alter(name, remote_log_copy_disable="false", local_retention_bytes="1")
    sites.produce(name, Records([6]))
    sites.expect_offset(name, EARLIEST_LOCAL, 3)
    sites.alter(name, remote_log_copy_disable="true", local_retention_bytes="-2", local_retention_ms="-2")
    sites.expect_all_read(name, 0, 4)
    assert sites.each(lambda site: site.delete_records(name, 1)) == 1
    sites.expect_states(name, DELETED, COPIED, COPIED)
    sites.alter(name, remote_storage_enable="false", error=INVALID_CONFIG)
    sites.alter(name, remote_storage_enable="false", remote_log_delete_on_disable="true")
    sites.expect_states(name, DELETED, DELETED, DELETED)
    sites.expect(lambda site: site.tier_files(name), [])
    sites.expect_offset(name, EARLIEST, 3)
    sites.expect_offset(name, EARLIEST_LOCAL, 3)
    sites.expect_all_read(name, 3, 1)


def test_local_retention_does_not_wait_for_copies_that_are_off(sites: Sites, name: str) -> None:
    """KAFKA-17236: with remote.log.copy.disable segments are deleted by retention alone, copied or not."""
    sites.create(name, TIERED, ONLY_THE_ACTIVE_ONE)
    batches = sites.produce(name, Records([0, 2, 4], padding=1000))
    sites.expect_local(name, 2)
    sites.alter(name, remote_log_copy_disable="true", local_retention_bytes="-2", local_retention_ms="-2")
    sites.produce(name, Records([6, 8, 10], padding=1000))
    sites.expect_local(name, 2, 3, 4, 5)
    sites.alter(name, retention_bytes=str(2 * len(batches[0])))
    sites.expect_states(name, DELETED, DELETED)
    sites.expect_local(name, 4, 5)
    sites.expect_offset(name, EARLIEST, 4)
    sites.expect_offset(name, EARLIEST_LOCAL, 4)
    sites.expect_all_read(name, 4, 2)


def test_list_offsets(sites: Sites, name: str) -> None:
    """Every special offset and times in both tiers, before and after the tier's beginning is deleted."""
    sites.create(name, TIERED, ONLY_THE_ACTIVE_ONE)
    sites.produce(name, Records([0, 0, 2, 2, 4, 4]))
    sites.expect_remote(name, (0, 1), (2, 3))
    sites.expect_offset(name, EARLIEST_LOCAL, 4)
    sites.expect_offset(name, LATEST_TIERED, 3)
    sites.expect_offset(name, EARLIEST_PENDING, 4)
    sites.expect_offset(name, EARLIEST, 0)
    sites.expect_offset(name, LATEST, 6)
    start = Records([0]).start_ms
    times = {
        start - 1: 0,
        start: 0,
        start + 1: 1,
        start + 1_000: 1,
        start + 1_001: 2,
        start + 2 * 3_600_000 + 1_000: 3,
        start + 2 * 3_600_000 + 1_001: 4,
        start + 4 * 3_600_000 + 1_000: 5,
        start + 4 * 3_600_000 + 1_001: -1,
    }
    for timestamp, offset in times.items():
        sites.expect_offset(name, timestamp, offset, epoch=-1 if offset < 0 else 0)
    assert sites.each(lambda site: site.delete_records(name, 3)) == 3
    sites.expect_states(name, DELETED, COPIED)
    sites.expect_offset(name, EARLIEST, 3)
    sites.expect_offset(name, EARLIEST_LOCAL, 4)
    for timestamp, offset in times.items():
        sites.expect_offset(name, timestamp, max(offset, 3) if offset >= 0 else -1, epoch=-1 if offset < 0 else 0)
    assert sites.each(lambda site: site.delete_records(name, 4)) == 4
    sites.expect_states(name, DELETED, DELETED)
    sites.expect_offset(name, EARLIEST, 4)
    sites.expect_offset(name, EARLIEST_LOCAL, 4)
    sites.each(lambda site: site.offset(name, LATEST_TIERED))
    sites.each(lambda site: site.offset(name, EARLIEST_PENDING))


def test_partition_expansion(sites: Sites, name: str) -> None:
    sites.create(name, TIERED, ONLY_THE_ACTIVE_ONE)
    sites.produce(name, Records([0, 2, 4]))
    sites.expect_remote(name, (0, 0), (1, 1))
    for site in sites.all:
        site.create_partitions(name, 3)
    sites.expect_all_read(name, 0, 3)
    for partition in (1, 2):
        sites.produce(name, Records([0, 2, 4]), partition=partition)
    sites.produce(name, Records([6, 8, 10]))
    sites.expect_remote(name, (0, 0), (1, 1), (2, 2), (3, 3), (4, 4))
    for partition in (1, 2):
        sites.expect_remote(name, (0, 0), (1, 1), partition=partition)
        sites.expect_local(name, 2, partition=partition)
        sites.expect_all_read(name, 0, 3, partition=partition)
    sites.expect_local(name, 5)
    sites.expect_all_read(name, 0, 6)
    sites.expect_all_read(name, 1, 2, partition=2)


def test_roll_of_the_active_segment(sites: Sites, name: str) -> None:
    """KAFKA-15047: the last segment is rolled when its local retention expires, and is copied too."""
    sites.create(name, TIERED)
    sites.produce(name, Records([0, 2, 4, 6]))
    sites.expect_remote(name, (0, 0), (1, 1), (2, 2))
    sites.alter(name, local_retention_ms="1")
    sites.expect_remote(name, (0, 0), (1, 1), (2, 2), (3, 3))
    sites.expect_offset(name, EARLIEST_LOCAL, 4)
    sites.expect_local(name, 4)
    sites.expect_all_read(name, 0, 4)
    sites.produce(name, Records([8]))
    sites.expect_remote(name, (0, 0), (1, 1), (2, 2), (3, 3), (4, 4))
    sites.expect_all_read(name, 0, 5)
    sites.agree_on_segments(name)
