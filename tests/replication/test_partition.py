import pytest

from kbroker.replication.offset_lookup import OffsetAsked, look_up
from kbroker.replication.partition_reads import Fetcher
from kbroker.replication.partition_state import Role
from kbroker.storage.log_config import LogConfig
from tests.replication.partitions import append, asking, partition, placed, round_over
from wire.errors import ErrorCode, KafkaError


def test_a_new_leadership_assigns_its_epoch_even_without_records() -> None:
    held = partition(image=placed(epoch=3))
    held.apply(placed(epoch=4))
    append(held, 2)
    held.apply(placed(epoch=7))
    assert held.log.leader_epochs.entries == [(4, 0), (7, 2)]


def test_the_metadata_alone_decide_the_role() -> None:
    held = partition(image=placed(replicas=(1, 2), isr=(1, 2)))
    assert held.role is Role.LEADER
    assert held.apply(placed(replicas=(1, 2), isr=(1, 2), leader=2, epoch=1)), "waiters learn that it does not lead"
    assert (held.role, held.leader) == (Role.FOLLOWER, 2)
    assert not held.apply(placed(replicas=(2, 3), isr=(2,), leader=2, epoch=1))
    assert held.role is Role.NONE
    assert held.apply(placed(replicas=(1, 2), isr=(1, 2), epoch=2))
    assert held.role is Role.LEADER
    assert held.apply(None)
    assert held.role is Role.NONE


def test_a_checkpointed_high_watermark_survives_role_changes() -> None:
    held = partition()
    append(held, 5)
    held.apply(None)
    held.apply(placed(replicas=(1, 2), isr=(1, 2), epoch=1))
    assert held.readable_end() == 5, "committed records stay committed through a change of roles"
    younger = partition(image=placed(replicas=(1, 2), isr=(1, 2)), high_watermark=9)
    assert younger.readable_end() == 0, "but not beyond the log end"


def test_a_shrunken_isr_commits_what_its_members_have() -> None:
    held = partition(image=placed(replicas=(1, 2), isr=(1, 2)))
    append(held, 2)
    assert held.readable_end() == 0
    assert held.apply(placed(replicas=(1, 2), isr=(1,)))
    assert held.readable_end() == 2


def test_min_insync_replicas_is_capped_at_the_replica_count() -> None:
    alone = partition(config=LogConfig(min_insync_replicas=3))
    assert alone.leading().has_enough_replicas
    three = partition(image=placed(replicas=(1, 2, 3), isr=(1,)), config=LogConfig(min_insync_replicas=2))
    append(three)
    assert not three.leading().has_enough_replicas
    assert three.readable_end() == 0
    assert three.reconfigure(LogConfig(min_insync_replicas=1))
    assert three.readable_end() == 1


@pytest.mark.parametrize(("given", "code"), [(2, ErrorCode.FENCED_LEADER_EPOCH), (4, ErrorCode.UNKNOWN_LEADER_EPOCH)])
def test_a_follower_checks_the_epoch_before_not_leader_or_follower(given: int, code: ErrorCode) -> None:
    held = partition(image=placed(replicas=(1, 2), isr=(1, 2), leader=2, epoch=3))
    with pytest.raises(KafkaError) as caught:
        held.leading(given)
    assert caught.value.code is code
    with pytest.raises(KafkaError) as caught:
        held.leading(3)
    assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize("version", [4, 5])
def test_r13_a_new_leader_hides_the_log_end_until_caught_up(version: int) -> None:
    """After an election the high watermark may be below acknowledged offsets; it is hidden until it has caught up."""
    held = partition()
    append(held, 3)
    held.apply(None)
    held._known_high_watermark = 1
    held.apply(placed(replicas=(1, 2), isr=(1, 2), epoch=1))
    code = ErrorCode.OFFSET_NOT_AVAILABLE if version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE
    for timestamp in (-1, 10**12, 1):
        if timestamp == 1:
            assert look_up(held, OffsetAsked(timestamp, version)).offset == 0, "certain below the high watermark"
            continue
        with pytest.raises(KafkaError) as caught:
            look_up(held, OffsetAsked(timestamp, version))
        assert caught.value.code is code
    assert look_up(held, OffsetAsked(-1, version, replica_id=2)).offset == 3
    assert look_up(held, OffsetAsked(-2, version)).offset == 0
    round_over([held], asking(offset=3), fetcher=Fetcher(2)).note_follower()
    assert look_up(held, OffsetAsked(-1, version)).offset == 3


def test_a_follower_tells_tools_its_log_end_offset_and_nobody_else() -> None:
    held = partition()
    append(held, 3)
    held.apply(placed(replicas=(1, 2), isr=(1, 2), leader=2, epoch=1))
    assert look_up(held, OffsetAsked(-1, 7, replica_id=-2)).offset == 3
    for timestamp, replica in ((-1, -1), (-1, 2), (-2, -2), (1, -2)):
        with pytest.raises(KafkaError) as caught:
            look_up(held, OffsetAsked(timestamp, 7, replica_id=replica))
        assert caught.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER
