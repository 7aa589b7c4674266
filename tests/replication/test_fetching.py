"""When a waiting Fetch is due: cases A to H of Kafka's delayed fetch."""

from kbroker.replication.fetching import FetchRound
from kbroker.replication.partition_reads import Fetcher
from kbroker.storage.log_config import LogConfig
from tests.replication.partitions import ONE, append, asking, partition, placed, round_over
from wire.errors import ErrorCode

FOLLOWER = Fetcher(2)


def test_case_a_a_leader_that_resigns_ends_the_wait() -> None:
    held = partition()
    waiting = round_over([held], asking())
    assert not waiting.answers_at_once
    assert not waiting.is_satisfied()
    held.apply(placed(leader=2, replicas=(1, 2), isr=(1, 2), epoch=1))
    assert waiting.is_satisfied()
    waiting.read_blocking()
    assert waiting.answers[0].error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_case_d_a_failed_directory_ends_the_wait() -> None:
    held = partition()
    waiting = round_over([held], asking())
    held.log.state.fail(OSError(5, "gone"))
    assert waiting.is_satisfied()
    waiting.read_blocking()
    assert waiting.answers[0].error_code is ErrorCode.KAFKA_STORAGE_ERROR


def test_case_e_a_new_leader_epoch_ends_older_waits() -> None:
    held = partition()
    with_epoch, without = round_over([held], asking(epoch=0)), round_over([held], asking())
    held.apply(placed(epoch=1))
    assert with_epoch.is_satisfied()
    assert not without.is_satisfied()
    with_epoch.read_blocking()
    assert with_epoch.answers[0].error_code is ErrorCode.FENCED_LEADER_EPOCH


def test_case_f_a_fetch_from_an_older_segment_does_not_wait() -> None:
    held = partition(config=LogConfig(segment_bytes=3 * ONE))
    append(held, 2)
    waiting = round_over([held], asking(), min_bytes=1000)
    assert not waiting.answers_at_once
    append(held, 1)
    assert not waiting.is_satisfied(), "the end is still in the same segment"
    append(held, 1)
    assert waiting.is_satisfied()
    assert round_over([held], asking(), min_bytes=1000).answers_at_once
    assert not round_over([held], asking(offset=3), min_bytes=1000).answers_at_once


def test_case_f_applies_even_without_remaining_budget() -> None:
    old, big = partition("old", config=LogConfig(segment_bytes=2 * ONE)), partition("big")
    append(old, 3)
    append(big, 1)
    read = round_over([old, big], asking("big"), asking("old"), max_bytes=ONE, min_bytes=1000)
    assert [answer.size for answer in read.answers] == [ONE, 0]
    assert read.answers_at_once


def test_case_g_bytes_count_up_to_each_partitions_limit() -> None:
    a, b = partition("a"), partition("b")
    waiting = round_over([a, b], asking("a", limit=2 * ONE), asking("b"), min_bytes=4 * ONE)
    append(a, 3)
    append(b, 1)
    assert not waiting.is_satisfied(), "a counts only up to its limit"
    append(b, 1)
    assert waiting.is_satisfied()
    waiting.read_blocking()
    assert [answer.size for answer in waiting.answers] == [2 * ONE, 2 * ONE]


def test_case_g_bytes_already_read_count_once() -> None:
    held = partition()
    append(held, 1)
    waiting = round_over([held], asking(), min_bytes=3 * ONE)
    for _ in range(3):
        assert not waiting.is_satisfied()
    append(held, 1)
    assert not waiting.is_satisfied()
    append(held, 1)
    assert waiting.is_satisfied()


def test_bytes_count_when_the_fetch_offset_left_memory() -> None:
    held = partition()
    waiting = round_over([held], asking(), min_bytes=1000 * ONE)
    append(held, 999)
    assert not held.log.knows_place_of(0)
    assert not waiting.is_satisfied()
    append(held, 1)
    assert waiting.is_satisfied()


def test_asking_whether_a_fetch_is_due_changes_nothing() -> None:
    held = partition()
    waiting = round_over([held], asking(), min_bytes=2 * ONE)
    before = waiting.size, waiting.answers[0].size, waiting.answers[0].read
    append(held, 2)
    assert waiting.is_satisfied()
    assert (waiting.size, waiting.answers[0].size, waiting.answers[0].read) == before


def test_the_second_read_finds_changed_offsets_without_records() -> None:
    held = partition(image=placed(replicas=(1, 2), isr=(1, 2)))
    append(held, 2)
    waiting = round_over([held], asking(offset=2), fetcher=FOLLOWER)
    first = waiting.answers[0].read
    assert waiting.read()
    assert waiting.answers[0].read is first, "nothing has changed"
    round_over([held], asking(offset=2), fetcher=FOLLOWER).note_follower()
    assert waiting.read()
    assert waiting.answers[0].high_watermark == 2
    held.log.raise_log_start_offset(1)
    assert waiting.read()
    assert waiting.answers[0].log_start_offset == 1
    held.apply(None)
    assert waiting.read()
    assert waiting.answers[0].error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_case_h_a_new_divergence_ends_the_wait() -> None:
    held = partition()
    append(held, 2)
    waiting = round_over([held], asking(offset=2, last=0), fetcher=FOLLOWER)
    assert waiting.answers_at_once, "2 is not a follower yet"
    held.apply(placed(replicas=(1, 2), isr=(1,), epoch=1))
    waiting = round_over([held], asking(offset=2, last=1), fetcher=FOLLOWER)
    assert not waiting.answers_at_once
    held.log.truncate_to(1)
    held.log.leader_epochs.truncate_from_end(1)
    held.apply(placed(replicas=(1, 2), isr=(1,), epoch=2))
    assert waiting.is_satisfied()


def test_followers_wait_for_the_log_end_consumers_for_high_watermark() -> None:
    held = partition(image=placed(replicas=(1, 2), isr=(1, 2)))
    follower, consumer = round_over([held], asking(), fetcher=FOLLOWER), round_over([held], asking())
    append(held)
    assert follower.is_satisfied()
    assert not consumer.is_satisfied()
    assert round_over([held], asking(offset=1), fetcher=FOLLOWER).note_follower()[0] == [held.key]
    assert consumer.is_satisfied()


def test_reading_on_does_not_acknowledge_again() -> None:
    held = partition(image=placed(replicas=(1, 2), isr=(1, 2)))
    append(held, 2)
    fetch = round_over([held], asking(offset=1), fetcher=FOLLOWER)
    assert fetch.note_follower()[0] == [held.key]
    assert held.readable_end() == 1
    fetch.answers[0].asked.fetch_offset = 2
    fetch.read_blocking()
    assert held.readable_end() == 1


def test_a_replaced_follower_is_refused_and_acknowledges_nothing() -> None:
    held = partition(image=placed(replicas=(1, 2), isr=(1, 2)))
    append(held, 1)
    fetch = round_over([held], asking(offset=1), fetcher=Fetcher(2, is_stale=True))
    assert fetch.note_follower()[0] == []
    assert fetch.answers[0].error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert fetch.answers[0].size == 0
    assert fetch.answers_at_once
    assert held.readable_end() == 0


def test_a_follower_removed_during_a_read_is_refused() -> None:
    held = partition(image=placed(replicas=(1, 2), isr=(1, 2)))
    fetch = round_over([held], asking(), fetcher=FOLLOWER)
    held.apply(placed(replicas=(1, 3), isr=(1,), partition_epoch=1))
    fetch.refuse_retired()
    assert fetch.note_follower() == ([], [])
    assert fetch.answers[0].error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_partition_lost_during_a_read_fails_alone() -> None:
    image = placed(replicas=(1, 2), isr=(1, 2))
    kept, lost = partition("kept", image=image), partition("lost", image=image)
    append(kept, 1)
    fetch = round_over([kept, lost], asking("kept", offset=1), asking("lost"), fetcher=FOLLOWER)
    lost.apply(placed(replicas=(1, 2), isr=(1, 2), leader=2, epoch=1))
    assert fetch.note_follower() == ([kept.key], [])
    assert [answer.error_code for answer in fetch.answers] == [ErrorCode.NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER]


def test_a_fetch_in_an_earlier_leader_epoch_acknowledges_nothing() -> None:
    """During the read, another broker has led in between; the follower may have truncated its log since."""
    held = partition(image=placed(replicas=(1, 2), isr=(1, 2)))
    append(held, 1)
    fetch = round_over([held], asking(offset=1, epoch=0), fetcher=FOLLOWER)
    held.apply(placed(replicas=(1, 2), isr=(1, 2), leader=2, epoch=1))
    held.apply(placed(replicas=(1, 2), isr=(1, 2), epoch=2))
    assert fetch.note_follower() == ([], [])
    assert held.readable_end() == 0
    assert fetch.answers[0].error_code is ErrorCode.FENCED_LEADER_EPOCH


def test_a_diverging_follower_acknowledges_nothing() -> None:
    held = partition(image=placed(replicas=(1, 2), isr=(1, 2), epoch=4))
    append(held, 2)
    held.apply(placed(replicas=(1, 2), isr=(1, 2), epoch=6))
    fetch = round_over([held], asking(offset=3, last=5), fetcher=FOLLOWER)
    assert fetch.answers[0].must_be_sent
    assert fetch.note_follower()[0] == []
    assert held.readable_end() == 0


def test_only_followers_read_beyond_the_high_watermark() -> None:
    held = partition(image=placed(replicas=(1, 2), isr=(1, 2)))
    append(held, 3)
    round_over([held], asking(offset=2), fetcher=FOLLOWER).note_follower()
    assert round_over([held], asking()).size == 2 * ONE
    assert round_over([held], asking(), fetcher=FOLLOWER).size == 3 * ONE
    assert round_over([held], asking(), fetcher=Fetcher(-3)).size == 3 * ONE
    between = round_over([held], asking(offset=3))
    assert (between.answers[0].error_code, between.size) == (ErrorCode.NONE, 0)


def test_unknown_positions_are_looked_up_outside_the_event_loop() -> None:
    held = partition()
    append(held, 2000)
    tail = held.log.log_end_offset - 1
    assert not held.log.knows_place_of(5)
    assert held.log.knows_place_of(tail)
    asked = asking(offset=5, limit=10 * ONE)
    far = FetchRound([asked], lambda _: held, fetcher=Fetcher(), max_bytes=1000, min_bytes=1)
    assert not far.read()
    far.read_blocking()
    assert far.size == 10 * ONE
    on = FetchRound([asking(offset=15)], lambda _: held, fetcher=Fetcher(), max_bytes=1000, min_bytes=1)
    assert on.read(), "it continues where the last read ended"
    near = FetchRound([asking(offset=tail)], lambda _: held, fetcher=Fetcher(), max_bytes=1000, min_bytes=1)
    assert near.read()
