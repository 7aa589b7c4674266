"""Replicas whose logs have diverged, with real logs: the scenarios of KIP-101 and KIP-279."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from kbroker.metadata.image import PartitionImage
from kbroker.replication.fetching import FetchRound
from kbroker.replication.follower import Followed, truncation_offset
from kbroker.replication.partition import Partition
from kbroker.replication.partition_reads import Fetcher
from tests.replication.partitions import append, asking, partition, placed
from wire.record_batch import RecordBatch

LARGEST = 1 << 20


class Cluster:
    """Replicas of one partition on brokers 1 to n, that follow elections one after the other."""

    def __init__(self, count: int = 2) -> None:
        self.ids = tuple(range(1, count + 1))
        self.epoch = -1
        self.partition_epoch = -1
        self.held = {one: partition(image=self._image(1, ()), broker_id=one) for one in self.ids}

    def _image(self, leader: int, isr: Sequence[int]) -> PartitionImage:
        return placed(
            replicas=self.ids,
            isr=isr or self.ids,
            leader=leader,
            epoch=self.epoch,
            partition_epoch=self.partition_epoch,
        )

    def elect(self, leader: int, *, isr: Sequence[int] = (), unaware: Sequence[int] = ()) -> Partition:
        """Make a replica the leader; the brokers in `unaware` do not learn of it."""
        self.epoch += 1
        self.partition_epoch += 1
        for one, held in self.held.items():
            if one not in unaware:
                held.apply(self._image(leader, isr))
        return self.held[leader]

    def restart(self, one: int) -> Partition:
        """The process ends and starts again: it knows the high watermark of its last checkpoint, here 0."""
        old = self.held[one]
        made = Partition(
            broker_id=one, topic=old.topic, topic_id=old.topic_id, index=0, log=old.log, checkpointed_high_watermark=0
        )
        self.held[one] = made
        return made

    def fetch(self, follower_id: int) -> int:
        """One Fetch of a follower; returns the bytes that it appended, negative if it truncated instead."""
        follower = self.held[follower_id]
        leader = self.held[follower.leader]
        followed = Followed(follower, follower.leader_epoch)
        asked = asking(
            offset=followed.fetch_offset,
            limit=LARGEST,
            epoch=followed.leader_epoch,
            last=followed.last_fetched_epoch,
        )
        fetcher = Fetcher(follower_id)
        made = FetchRound([asked], lambda _: leader, fetcher=fetcher, max_bytes=LARGEST, min_bytes=1)
        made.read_blocking()
        made.note_follower()
        read = made.answers[0].read
        assert read is not None, made.answers[0].error
        log = follower.log
        if read.diverging is not None:
            before = log.log_end_offset
            log.truncate_to(truncation_offset(*read.diverging, log.leader_epochs, log_end_offset=log.log_end_offset))
            follower.on_truncated()
            return min(-1, log.log_end_offset - before)
        if read.records is not None:
            assert not isinstance(read.records, bytes | bytearray | memoryview | list | tuple)
            plan = log.plan_append_as_follower(
                bytearray(read.records.read()), timestamp_ms=1, leader_epoch=follower.leader_epoch
            )
            assert plan is not None
            log.write(plan)
            log.commit(plan)
        follower.on_leaders_offsets(read.high_watermark, read.log_start_offset)
        return read.size

    def catch_up(self, follower_id: int) -> int:
        """Fetch until nothing changes; returns how often the follower truncated."""
        truncations = 0
        for _ in range(100):
            moved = self.fetch(follower_id)
            if moved == 0:
                return truncations
            truncations += moved < 0
        raise AssertionError("the follower does not catch up")

    def values(self, one: int) -> list[bytes]:
        """The records of a replica."""
        log = self.held[one].log
        if not log.log_end_offset:
            return []
        data, found, position = log.read(0, max_bytes=LARGEST).read(), [], 0
        while position < len(data):
            batch = RecordBatch(data, position)
            found += [record.value or b"" for record in batch.records()]
            position += batch.size
        return found

    def agree(self) -> bool:
        """Whether all logs have the same bytes and the same epochs."""
        logs = [held.log for held in self.held.values()]
        data = {bytes(log.read(0, max_bytes=LARGEST).read()) for log in logs}
        return len(data) == 1 and len({tuple(log.leader_epochs.entries) for log in logs}) == 1


def test_r8_kip_101_scenario_1_a_restart_keeps_committed_records() -> None:
    """A follower restarts with an old high watermark, and then the leader fails. The follower must not have truncated
    to that high watermark: the record above it was acknowledged.
    """
    both = Cluster()
    leader = both.elect(2)
    append(leader, 1, value=b"m1")
    both.catch_up(1)
    append(leader, 1, value=b"m2")
    both.fetch(1)
    both.fetch(1)
    assert leader.readable_end() == 2, "m2 is acknowledged"
    restarted = both.restart(1)
    both.elect(2)
    assert both.fetch(1) <= 0
    assert restarted.log.log_end_offset == 2
    both.elect(1, isr=(1,))
    assert both.values(1) == [b"m1", b"m2"]
    assert restarted.readable_end() == 2


def test_r8_kip_101_scenario_2_an_offset_with_two_records_is_repaired() -> None:
    """Both replicas fail at once and lose what was not on the disk. The other one leads and writes another record at
    the same offset.
    """
    both = Cluster()
    leader = both.elect(1)
    append(leader, 1, value=b"m1")
    both.catch_up(2)
    append(leader, 1, value=b"m2")
    both.restart(1)
    both.restart(2)
    new_leader = both.elect(2, isr=(2,))
    append(new_leader, 1, value=b"m3")
    assert both.catch_up(1) == 1
    assert both.values(1) == [b"m1", b"m3"]
    assert both.agree()


def test_r8_kip_279_three_epochs_of_unreplicated_tails() -> None:
    """Two leaders take turns without seeing each other's records. The follower's last epoch is unknown to the leader,
    and the leader's largest epoch below it is unknown to the follower.
    """
    both = Cluster()
    first = both.elect(1)
    append(first, 3, value=b"common")
    both.catch_up(2)
    both.elect(1)
    append(first, 4, value=b"only 1, epoch 1")
    second = both.elect(2)
    append(second, 2, value=b"only 2, epoch 2")
    both.elect(1)
    append(first, 1, value=b"only 1, epoch 3")
    both.elect(2)
    append(second, 3, value=b"only 2, epoch 4")
    assert both.catch_up(1) >= 1
    assert both.agree()
    assert both.values(1) == [b"common"] * 3 + [b"only 2, epoch 2"] * 2 + [b"only 2, epoch 4"] * 3


def test_r8_an_epoch_without_records_is_removed_from_a_follower() -> None:
    both = Cluster()
    append(both.elect(2), 2)
    both.catch_up(1)
    both.elect(1, unaware=[2])
    leader = both.elect(2)
    append(leader, 1)
    assert both.catch_up(1) == 1
    assert both.agree()
    assert both.held[1].log.leader_epochs.entries == [(0, 0), (2, 2)]


def test_r8_a_truncation_below_the_high_watermark_lowers_it() -> None:
    """Only an unclean election makes this happen."""
    both = Cluster()
    append(both.elect(1), 2)
    both.catch_up(2)
    append(both.held[1], 3)
    both.catch_up(2)
    both.held[2].log.truncate_to(1)
    both.held[2].on_truncated()
    both.elect(2, isr=(2,))
    both.fetch(1)
    assert both.held[1].known_high_watermark == 1
    assert both.values(1) == both.values(2)


def test_a_follower_learns_the_high_watermark_from_answers() -> None:
    both = Cluster()
    append(both.elect(1), 2)
    both.fetch(2)
    assert both.held[2].known_high_watermark == 0
    both.fetch(2)  # acknowledges the records, and is answered with the offsets before that
    both.fetch(2)
    assert both.held[2].known_high_watermark == 2
    both.elect(2, isr=(2,))
    assert both.held[2].readable_end() == 2


@pytest.mark.parametrize("seed", range(20))
def test_r8_random_elections_end_with_equal_logs(seed: int) -> None:
    draw = Random(seed)
    three = Cluster(3)
    three.elect(1)
    for number in range(60):
        step = draw.random()
        leader = three.held[three.held[1].leader]
        if step < 0.4:
            append(leader, draw.randint(1, 3), value=b"%d" % number)
        elif step < 0.8:
            follower = draw.choice([one for one in three.ids if one != leader.broker_id])
            three.fetch(follower)
        else:
            # Any replica: an unclean election. The logs must agree in the end, whatever was lost.
            one = draw.choice(three.ids)
            three.elect(one, isr=(one,))
    leader = three.held[three.held[1].leader]
    append(leader, 1, value=b"last")
    for one in three.ids:
        if one != leader.broker_id:
            three.catch_up(one)
    assert three.agree()
