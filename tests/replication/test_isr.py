"""Which changes of the ISR a leader proposes, and what the controller's answers do to them."""

from uuid import UUID

import pytest

from kbroker.metadata.image import BrokerImage, Image
from kbroker.replication.isr import LiveBrokers, Verdict
from kbroker.replication.leader import LeaderProgress
from kbroker.replication.partition import Partition
from kbroker.replication.partition_reads import Fetcher
from kbroker.storage.log_config import LogConfig
from tests.replication.partitions import append, asking, partition, placed, round_over
from wire.errors import ErrorCode
from wire.messages.alter_partition import AlterPartitionResponsePartition

LIVE = {1: 10, 2: 20, 3: 30}


def leader(
    isr: set[int], *, end: int = 10, high_watermark: int = 0, epoch_start: int = 0, live: dict[int, int] | None = None
) -> LeaderProgress:
    return LeaderProgress(
        broker_id=1,
        log_end_offset=end,
        high_watermark=high_watermark,
        isr=frozenset(isr),
        replicas=(1, 2, 3),
        epoch_start_offset=epoch_start,
        leader_epoch=5,
        partition_epoch=7,
        brokers=LiveBrokers(LIVE if live is None else live),
    )


def led(isr: tuple[int, ...] = (1, 2), config: LogConfig | None = None) -> Partition:
    made = partition(image=placed(replicas=(1, 2), isr=isr), config=config)
    made.brokers.epochs = LIVE
    return made


def answer(
    isr: tuple[int, ...] = (), code: ErrorCode = ErrorCode.NONE, *, epoch: int = 1
) -> AlterPartitionResponsePartition:
    return AlterPartitionResponsePartition(
        partition_index=0, error_code=code, leader_id=1, leader_epoch=0, isr=list(isr), partition_epoch=epoch
    )


def test_a_follower_at_the_high_watermark_is_proposed() -> None:
    progress = leader({1, 3}, high_watermark=4)
    progress.on_follower_fetch(2, 3, broker_epoch=20)
    assert progress.proposal is None, "it does not have all committed records"
    progress.on_follower_fetch(2, 4, broker_epoch=20)
    assert progress.proposal is not None
    assert progress.proposal.members == {1: 10, 2: 20, 3: -1}
    assert (progress.proposal.leader_epoch, progress.proposal.partition_epoch) == (5, 7)
    assert progress.proposal.added == 2


def test_r8_a_follower_behind_the_epoch_start_is_not_proposed() -> None:
    """It may lack records that are committed although they are above the new leader's high watermark."""
    progress = leader({1, 3}, high_watermark=4, epoch_start=8)
    progress.on_follower_fetch(2, 7, broker_epoch=20)
    assert progress.proposal is None
    progress.on_follower_fetch(2, 8, broker_epoch=20)
    assert progress.proposal is not None


@pytest.mark.parametrize(
    ("live", "epoch", "joins"),
    [
        ({2: 20}, 20, True),
        ({2: 20}, -1, True),
        ({2: 21}, 20, False),
        ({2: 19}, 20, False),
        ({}, 20, False),
    ],
)
def test_only_the_live_incarnation_of_a_broker_is_proposed(live: dict[int, int], epoch: int, joins: bool) -> None:
    progress = leader({1}, live=live)
    progress.on_follower_fetch(2, 10, broker_epoch=epoch)
    assert (progress.proposal is not None) is joins


def test_fenced_and_stopping_brokers_are_not_live() -> None:
    brokers = LiveBrokers()
    brokers.follow(
        Image(
            brokers={
                number: BrokerImage(
                    number, 10 * number, UUID(int=number), {}, {}, fenced=fenced, in_controlled_shutdown=stops
                )
                for number, fenced, stops in ((1, False, False), (2, True, False), (3, False, True))
            }
        )
    )
    assert brokers.epochs == {1: 10}


def test_one_proposal_is_open_at_a_time() -> None:
    progress = leader({1})
    progress.on_follower_fetch(2, 10, broker_epoch=20)
    first = progress.proposal
    progress.on_follower_fetch(3, 10, broker_epoch=30)
    assert progress.proposal is first


def test_a_proposed_member_holds_the_high_watermark() -> None:
    progress = leader({1}, end=10)
    progress.on_follower_fetch(2, 10, broker_epoch=20)
    assert progress.maximal_isr == {1, 2}
    assert not progress.on_append(12)
    assert progress.high_watermark == 10
    assert progress.on_follower_fetch(2, 12, broker_epoch=20)
    assert progress.high_watermark == 12


def test_a_follower_that_caught_up_is_awaited_before_it_joins() -> None:
    """Otherwise the high watermark stays ahead of it for ever, and it never joins."""
    progress = leader({1}, end=10)
    progress.on_follower_fetch(2, 10, broker_epoch=20, now_ms=1_000)
    progress.drop_proposal()
    progress.on_append(12)
    assert progress.high_watermark == 10
    assert not progress.check_again(31_000)
    assert progress.check_again(31_001), "it has not caught up for too long"
    assert progress.high_watermark == 12


@pytest.mark.parametrize("has_left", [True, False], ids=["after its shrink", "before its shrink"])
def test_a_restarted_follower_is_not_awaited_before_it_catches_up(has_left: bool) -> None:
    """Apache Kafka waits for it if it was in sync within replica.lag.time.max.ms."""
    progress = leader({1, 3} if has_left else {1, 2, 3}, end=10)
    progress.on_follower_fetch(3, 10, broker_epoch=30, now_ms=1_000)
    progress.on_follower_fetch(2, 10, broker_epoch=20, now_ms=1_000)
    progress.on_append(20)
    progress.brokers.epochs = {**LIVE, 2: 21}
    progress.on_follower_fetch(2, 9, broker_epoch=21, now_ms=2_000)
    progress.on_metadata(frozenset({1, 3}), (1, 2, 3), 8)
    assert progress.on_follower_fetch(3, 20, broker_epoch=30, now_ms=2_000)
    assert progress.high_watermark == 20


def test_a_follower_that_may_not_join_is_not_awaited() -> None:
    progress = leader({1}, end=10, live={1: 10})
    progress.on_follower_fetch(2, 10, broker_epoch=20)
    assert progress.on_append(12)


def test_a_member_that_lags_is_removed_only_by_the_controller() -> None:
    held = led()
    append(held, 2)
    assert held.check_isr(30_000) == (False, {}), "it was in sync at the election"
    rose, lagging = held.check_isr(30_001)
    assert (rose, set(lagging)) == (False, {2})
    assert held.proposal is not None
    assert set(held.proposal.members) == {1}
    assert held.readable_end() == 0, "the member still counts"
    assert held.on_isr_answer(held.proposal, answer((1,))) == (Verdict.COMMITTED, True)
    assert held.readable_end() == 2
    assert (held.isr, held.partition_epoch, held.proposal) == ({1}, 1, None)


def test_a_member_at_the_log_end_never_lags() -> None:
    held = led()
    round_over([held], asking(), fetcher=Fetcher(2)).note_follower(now_ms=1)
    assert held.check_isr(1_000_000) == (False, {})


def test_a_follower_that_reaches_each_earlier_end_is_in_sync() -> None:
    """Under steady load a follower's fetch never reaches the leader's end, but always that of its previous fetch."""
    progress = leader({1, 2}, end=0)
    for step in range(100):
        progress.on_append(10 * step + 10)
        progress.on_follower_fetch(2, 10 * step, now_ms=1_000 * step)
    assert not progress.lagging()
    progress.check_again(98_000 + 30_000)
    assert not progress.lagging()
    progress.check_again(98_000 + 30_001)
    assert set(progress.lagging()) == {2}


@pytest.mark.parametrize(
    ("code", "verdict", "is_open"),
    [
        (ErrorCode.INELIGIBLE_REPLICA, Verdict.REFUSED, False),
        (ErrorCode.OPERATION_NOT_ATTEMPTED, Verdict.REFUSED, False),
        (ErrorCode.UNKNOWN_TOPIC_ID, Verdict.UNKNOWN, True),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, Verdict.UNKNOWN, True),
        (ErrorCode.FENCED_LEADER_EPOCH, Verdict.UNKNOWN, True),
        (ErrorCode.INVALID_UPDATE_VERSION, Verdict.UNKNOWN, True),
        (ErrorCode.INVALID_REQUEST, Verdict.UNKNOWN, True),
        (ErrorCode.NEW_LEADER_ELECTED, Verdict.UNKNOWN, True),
        (ErrorCode.NOT_CONTROLLER, Verdict.RETRY, True),
        (ErrorCode.UNKNOWN_SERVER_ERROR, Verdict.RETRY, True),
    ],
)
def test_an_error_decides_how_a_proposal_continues(code: ErrorCode, verdict: Verdict, is_open: bool) -> None:
    held = led(isr=(1,))
    round_over([held], asking(), fetcher=Fetcher(2)).note_follower()
    proposal = held.proposal
    assert proposal is not None
    assert held.on_isr_answer(proposal, answer(code=code)) == (verdict, False)
    assert (held.proposal is proposal) is is_open
    assert held.progress is not None
    assert held.progress.maximal_isr == ({1, 2} if is_open else {1})


def test_newer_metadata_ends_a_proposal() -> None:
    held = led(isr=(1,))
    round_over([held], asking(), fetcher=Fetcher(2)).note_follower()
    proposal = held.proposal
    assert proposal is not None
    held.apply(placed(replicas=(1, 2), isr=(1,), partition_epoch=3))
    assert held.proposal is None
    assert held.on_isr_answer(proposal, answer((1, 2), epoch=4)) == (Verdict.UNKNOWN, False)
    assert held.isr == {1}, "a late answer changes nothing"


def test_metadata_of_an_answered_proposal_leaves_the_next_open() -> None:
    held = partition(image=placed(replicas=(1, 2, 3), isr=(1,)))
    held.brokers.epochs = LIVE
    round_over([held], asking(), fetcher=Fetcher(2)).note_follower()
    assert held.proposal is not None
    held.on_isr_answer(held.proposal, answer((1, 2), epoch=1))
    round_over([held], asking(), fetcher=Fetcher(3)).note_follower()
    following = held.proposal
    assert following is not None
    held.apply(placed(replicas=(1, 2, 3), isr=(1, 2), partition_epoch=1))
    assert held.proposal is following
    append(held)
    round_over([held], asking(offset=1), fetcher=Fetcher(2)).note_follower()
    assert held.readable_end() == 0, "the controller may have added broker 3, which does not have the record"


def test_a_proposal_is_submitted_once() -> None:
    held = led(isr=(1,))
    assert round_over([held], asking(), fetcher=Fetcher(2)).note_follower()[1] == [held]
    assert round_over([held], asking(), fetcher=Fetcher(2)).note_follower()[1] == []
    assert held.proposal is not None


def test_older_metadata_do_not_undo_an_answer() -> None:
    held = led(isr=(1,))
    round_over([held], asking(), fetcher=Fetcher(2)).note_follower()
    assert held.proposal is not None
    held.on_isr_answer(held.proposal, answer((1, 2), epoch=2))
    assert not held.apply(placed(replicas=(1, 2), isr=(1,), partition_epoch=1))
    assert held.isr == {1, 2}


def test_acks_all_counts_members_that_are_being_added() -> None:
    held = led(isr=(1,), config=LogConfig(min_insync_replicas=2))
    round_over([held], asking(), fetcher=Fetcher(2)).note_follower()
    assert held.progress is not None
    assert not held.progress.has_enough_replicas, "nothing is appended before the controller agrees"
    assert held.progress.had_enough_replicas


def test_the_low_watermark_is_that_of_live_followers() -> None:
    progress = leader({1, 2, 3}, end=10, live={1: 10, 2: 20})
    progress.on_follower_fetch(3, 10, log_start_offset=1)
    assert progress.low_watermark == -1
    progress.on_follower_fetch(2, 10, log_start_offset=4)
    assert progress.low_watermark == 4
