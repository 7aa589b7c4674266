"""Copies that fail: in the store, in the record of their end, or because their broker leads no more."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from kbroker.replication.partition import Partition
from kbroker.testing.disk import SimulatedDisk
from kbroker.tiered.api import (
    LogSegmentData,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from kbroker.tiered.metadata_topic import encode_event, metadata_partition
from kbroker.tiered.tools import id_of
from tests.tiered.tier_site import FaultyStorage, Site, bases

State = RemoteLogSegmentState


@pytest.mark.parametrize("after", [False, True])
async def test_m8_a_failed_copy_is_deleted_and_started_over(after: bool, autojump_clock: MockClock) -> None:
    site = Site()
    site.storage.copies, site.storage.after = [RemoteStorageError("403 Forbidden")], after
    orders = site.add()
    site.append(orders, 9)
    async with site.at_work():
        assert site.segments(orders) == []
        assert site.objects() == set()
        assert site.remote(orders).counters.copy_errors == 1
        assert site.remote(orders).last_error == "403 Forbidden"
        assert site.remote(orders).copy_lag_segments == len(bases(site)) - 1
        await site.rounds()
        assert site.finished(orders) == bases(site)[:-1]
        assert site.remote(orders).last_error == ""
        assert not site.complaints(orders)


async def test_a_copy_does_not_start_after_the_leadership_is_lost(autojump_clock: MockClock) -> None:
    """The broker loses it while it checks the segment, which takes a minute."""
    site = Site()

    class SlowThreads:
        async def run_blocking(self, function, *arguments):  # type: ignore[no-untyped-def]
            await trio.sleep(60)
            return function(*arguments)

    site.manager.tools.copy_threads = SlowThreads()  # type: ignore[assignment]
    orders = site.add()
    site.append(orders, 9)
    async with site.at_work():
        await trio.sleep(30)
        site.lead(orders, leader=2)
        await site.rounds(5)
        assert site.metadata.counters.events_read == 0
        assert site.storage.copied == site.storage.deleted == []


async def test_kafka_17428_the_deletion_of_leftovers_is_retried(autojump_clock: MockClock) -> None:
    """The clean-up fails too: DELETE_SEGMENT_STARTED is durable, and is kept over a restart."""
    site = Site()
    site.storage.copies, site.storage.after = [RemoteStorageError("507")], True
    site.storage.undeletable = {0}
    orders = site.add()
    site.append(orders, 9)
    async with site.at_work():
        await site.rounds(2)
        stuck = [one for one in site.segments(orders) if one.state is State.DELETE_SEGMENT_STARTED]
        assert [one.start_offset for one in stuck] == [0]
        assert site.finished(orders) == bases(site)[:-1], "it does not block further copies"
        assert site.remote(orders).counters.delete_errors >= 3
    site.close()
    again = site.again()
    orders = again.add()
    async with again.at_work():
        assert again.storage.deleted == [0]
        assert [one.state for one in again.segments(orders)] == [State.COPY_SEGMENT_FINISHED] * 2
        assert not again.complaints(orders)


async def test_kafka_19981_m1_attempts_during_an_outage_do_not_pile_up(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Retriable: nothing is deleted, at most one attempt is kept, and the log has one line."""
    site = Site()
    site.storage.down = RetriableRemoteStorageError("connection refused")
    orders = site.add()
    site.append(orders, 9)
    with caplog.at_level("INFO", logger="kbroker.tiered"):
        async with site.at_work():
            await trio.sleep(3_600)
            await site.settle()
            assert len(site.segments(orders)) == 1
            remote = site.remote(orders)
            assert remote.counters.delete_errors == 0
            assert remote.counters.copy_errors > 1, "each failed attempt counts"
            assert remote.counters.copy_requests == 1
            assert remote.last_error == "connection refused"
            assert remote.copy_lag_segments == len(bases(site)) - 1
            await site.retain(orders)
            assert bases(site)[0] == 0
            site.append(orders, 12)  # producers are not affected
            assert orders.log.read(0, max_bytes=10_000).size
            site.storage.down = None
            await site.rounds()
            assert site.finished(orders) == bases(site)[:-1]
            assert remote.copy_lag_segments == 0
            assert not site.complaints(orders)
    said = [record for record in caplog.records if "tier operation failed" in record.getMessage()]
    assert len(said) == 1


@pytest.mark.long
async def test_m1_a_store_full_for_a_day_costs_one_record(autojump_clock: MockClock) -> None:
    site = Site()
    site.storage.copies = [RetriableRemoteStorageError("507 full")] * 5_000
    orders = site.add()
    site.append(orders, 9)
    async with site.at_work():
        await trio.sleep(86_400)
        assert len(site.storage.copies) < 3_000
        assert sum(log.log_end_offset for log in site.topic.logs) == 1
        assert site.storage.deleted == []
        site.storage.copies = []
        await site.rounds()
        assert site.finished(orders) == bases(site)[:-1]
        assert not site.complaints(orders)


class LosesTheMetadata(FaultyStorage):
    """After the first copy the tier's metadata cannot be written."""

    site: Site

    def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes | None:
        found = super().copy_log_segment_data(metadata, data)
        if len(self.copied) == 1:
            self.site.topic.set_reachable(False)
        return found


def site_that_loses_the_metadata() -> tuple[Site, LosesTheMetadata, Partition]:
    disk = SimulatedDisk()
    storage = LosesTheMetadata(disk)
    storage.site = site = Site(disk, storage=storage)
    orders = site.add()
    site.append(orders, 9)
    return site, storage, orders


async def test_m8_a_stored_copy_is_finished_later_and_not_repeated(autojump_clock: MockClock) -> None:
    """Its record may have been written already, and followers may rely on it: it must not be deleted."""
    site, storage, orders = site_that_loses_the_metadata()
    async with site.at_work():
        await trio.sleep(600)
        assert (len(storage.copied), storage.deleted, site.finished(orders)) == (1, [], [])
        site.topic.set_reachable(True)
        await site.rounds()
        assert site.finished(orders) == storage.copied == bases(site)[:-1]
        assert storage.deleted == []
        assert not site.complaints(orders)


async def test_a_copy_is_kept_if_a_plug_in_fails_after_it_recorded_the_end(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site()
    orders = site.add()
    site.append(orders, 9)
    record, failures = site.metadata.update_remote_log_segment_metadata, [RemoteStorageError("timed out")]

    async def record_and_fail_once(update: RemoteLogSegmentMetadataUpdate) -> None:
        await record(update)
        if failures:
            raise failures.pop()

    monkeypatch.setattr(site.metadata, "update_remote_log_segment_metadata", record_and_fail_once)
    async with site.at_work():
        await site.rounds()
        assert not failures
        assert not site.storage.deleted
        assert site.finished(orders) == site.storage.copied == bases(site)[:-1]
        assert not site.complaints(orders)


async def test_the_objects_of_a_copy_that_the_leader_gave_up_are_deleted_after_an_outage(
    autojump_clock: MockClock,
) -> None:
    site, storage, orders = site_that_loses_the_metadata()
    async with site.at_work():
        await trio.sleep(600)
        lost = next(one for one in site.segments(orders) if one.state is State.COPY_SEGMENT_STARTED)
        gone = [
            RemoteLogSegmentMetadataUpdate(
                remote_log_segment_id=lost.remote_log_segment_id, event_timestamp_ms=0, state=state, broker_id=2
            )
            for state in (State.DELETE_SEGMENT_STARTED, State.DELETE_SEGMENT_FINISHED)
        ]
        storage.deletions = [RetriableRemoteStorageError("503")]
        site.topic.set_reachable(True)
        await site.topic.append(metadata_partition(id_of(orders), 2), [encode_event(one) for one in gone])
        await site.rounds(4)
        assert storage.deletions == []
        assert site.finished(orders) == bases(site)[:-1]
        assert not site.complaints(orders), "its objects are orphans"


@pytest.mark.parametrize("when", ["before", "after"])
async def test_m9_a_broker_that_leads_no_more_deletes_its_copy(when: str, autojump_clock: MockClock) -> None:
    """It loses the leadership while the objects are stored."""
    disk = SimulatedDisk()

    class LosesLeadership(FaultyStorage):
        def copy_log_segment_data(self, metadata: RemoteLogSegmentMetadata, data: LogSegmentData) -> bytes | None:
            if len(self.copied) == 1 and site.leader_epoch == 1:
                site.lead(orders, leader=2)
                if when == "before":
                    raise RetriableRemoteStorageError("503")
            return super().copy_log_segment_data(metadata, data)

    storage = LosesLeadership(disk)
    site = Site(disk, storage=storage)
    orders = site.add()
    site.append(orders, 9)
    async with site.at_work():
        await site.rounds()
        first, second, *_ = bases(site)
        assert site.finished(orders) == [first]
        assert storage.deleted == [second]
        assert [one.start_offset for one in site.metadata.list_remote_log_segments(id_of(orders))] == [first]
        site.lead(orders)
        await site.rounds()
        assert site.finished(orders) == bases(site)[:-1]
        assert not site.complaints(orders)


async def test_m1_an_outage_is_logged_once_at_start_and_end(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    site = Site()
    for index in range(5):
        site.append(site.add(index=index), 9)
    gone = site.add("gone")
    site.append(gone, 9)
    async with site.at_work():
        site.delete_topic(gone)
        await site.changed()
        site.storage.down = RetriableRemoteStorageError("connection refused")
        for partition in tuple(site.partitions.values()):
            site.append(partition, 9)
        for _ in range(2):
            caplog.clear()
            await site.rounds(5)
            if site.storage.down.args == ("connection refused",):
                assert [one.levelname for one in caplog.records] == ["WARNING"]
            else:
                assert not caplog.records, "another error is the same outage"
            site.storage.down = RetriableRemoteStorageError("no route")
        site.storage.down = None
        await site.rounds(40)
        assert [(one.levelname, one.getMessage()) for one in caplog.records] == [
            ("WARNING", "the tier answers again")
        ], "and its end"


@pytest.mark.parametrize("end", ["stop", "deletion"])
async def test_only_an_answer_of_the_store_ends_an_outage(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, end: str
) -> None:
    site = Site()
    orders = site.add()
    site.append(orders, 9)
    site.storage.down = RetriableRemoteStorageError("connection refused")
    async with site.at_work():
        await site.rounds(5)
        assert "the tier does not answer" in caplog.text
        if end == "deletion":
            site.delete_topic(orders)
            await site.changed()
    assert "the tier answers again" not in caplog.text
