import pytest

from kbroker.replication.offset_lookup import OffsetAsked, look_up
from kbroker.replication.partition import Fetcher
from kbroker.storage.log_config import LogConfig
from tests.replication.partitions import append, asking, partition, placed, round_over
from wire.errors import ErrorCode, KafkaError


def test_the_epoch_of_a_new_leadership_is_noted_even_without_a_record() -> None:
    held = partition(image=placed(epoch=3))
    held.apply(placed(epoch=4))
    append(held, 2)
    held.apply(placed(epoch=7))
    assert held.log.leader_epochs.entries == [(4, 0), (7, 2)]


def test_a_checkpointed_high_watermark_holds_for_followers_to_confirm() -> None:
    held = partition()
    append(held, 5)
    held.resign()
    held.apply(placed(replicas=(1, 2), isr=(1, 2), epoch=1))
    assert held.readable_end() == 5, "what was committed stays so through a change of roles"
    younger = partition(image=placed(replicas=(1, 2), isr=(1, 2)), high_watermark=9)
    assert younger.readable_end() == 0, "but never beyond the log"


def test_a_shrunken_isr_commits_what_the_rest_has() -> None:
    held = partition(image=placed(replicas=(1, 2), isr=(1, 2)))
    append(held, 2)
    assert held.readable_end() == 0
    assert held.apply(placed(replicas=(1, 2), isr=(1,)))
    assert held.readable_end() == 2


def test_min_insync_replicas_counts_no_more_replicas_than_there_are() -> None:
    alone = partition(config=LogConfig(min_insync_replicas=3))
    assert alone.leading().has_enough_replicas
    three = partition(image=placed(replicas=(1, 2, 3), isr=(1,)), config=LogConfig(min_insync_replicas=2))
    append(three)
    assert not three.leading().has_enough_replicas
    assert three.readable_end() == 0
    assert three.reconfigure(LogConfig(min_insync_replicas=1))
    assert three.readable_end() == 1


@pytest.mark.parametrize(("given", "code"), [(2, ErrorCode.FENCED_LEADER_EPOCH), (4, ErrorCode.UNKNOWN_LEADER_EPOCH)])
def test_a_follower_compares_epochs_before_it_says_that_it_does_not_lead(given: int, code: ErrorCode) -> None:
    held = partition(image=placed(replicas=(1, 2), isr=(1, 2), leader=2, epoch=3))
    with pytest.raises(KafkaError) as caught:
        held.leading(given)
    assert caught.value.code is code
    with pytest.raises(KafkaError) as caught:
        held.leading(3)
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("version", [4, 5])
def test_r13_a_leader_that_has_not_reached_its_epoch_does_not_say_where_the_log_ends(version: int) -> None:
    """After an election the high watermark may lie below what was acknowledged; until it has caught up none is told."""
    held = partition()
    append(held, 3)
    held.resign()
    held._known_high_watermark = 1
    held.apply(placed(replicas=(1, 2), isr=(1, 2), epoch=1))
    code = ErrorCode.OFFSET_NOT_AVAILABLE if version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE
    for timestamp in (-1, 10**12, 1):
        if timestamp == 1:
            assert look_up(held, OffsetAsked(timestamp, version)).offset == 0, "below the high watermark it is certain"
            continue
        with pytest.raises(KafkaError) as caught:
            look_up(held, OffsetAsked(timestamp, version))
        assert caught.value.code is code
    assert look_up(held, OffsetAsked(-1, version, replica_id=2)).offset == 3
    assert look_up(held, OffsetAsked(-2, version)).offset == 0
    round_over([held], asking(offset=3), fetcher=Fetcher(2)).note_follower()
    assert look_up(held, OffsetAsked(-1, version)).offset == 3
