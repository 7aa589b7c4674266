from hypothesis import given
from hypothesis import strategies as st

from kbroker.replication.leader import LeaderProgress


def progress(isr: set[int], *, end: int = 0, high_watermark: int = 0, min_isr: int = 1) -> LeaderProgress:
    return LeaderProgress(
        broker_id=1,
        log_end_offset=end,
        high_watermark=high_watermark,
        isr=frozenset(isr),
        min_insync_replicas=min_isr,
        replicas=(1, 2, 3),
    )


def test_a_leader_alone_in_sync_commits_its_log_end() -> None:
    leader = progress({1}, end=7)
    assert leader.high_watermark == 7
    assert leader.on_append(9)
    assert leader.high_watermark == 9


def test_the_slowest_isr_member_determines_the_high_watermark() -> None:
    leader = progress({1, 2, 3}, end=10)
    assert leader.high_watermark == 0
    assert not leader.on_follower_fetch(2, 8)
    assert leader.on_follower_fetch(3, 6)
    assert leader.high_watermark == 6


def test_a_replica_outside_the_isr_does_not_count() -> None:
    leader = progress({1, 2}, end=10)
    leader.on_follower_fetch(3, 1)
    assert leader.on_follower_fetch(2, 10)
    assert leader.high_watermark == 10


def test_a_shrinking_isr_raises_the_high_watermark() -> None:
    leader = progress({1, 2}, end=10)
    assert leader.on_metadata(frozenset({1}), (1, 2, 3), 1)
    assert leader.high_watermark == 10


def test_the_high_watermark_does_not_advance_below_min_insync_replicas() -> None:
    leader = progress({1}, end=4, min_isr=2)
    assert leader.high_watermark == 0
    assert not leader.has_enough_replicas
    assert leader.on_metadata(frozenset({1, 2}), (1, 2, 3), 1) is False
    assert leader.on_follower_fetch(2, 4)
    assert leader.high_watermark == 4


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 5)),
        st.tuples(st.just("fetch"), st.sampled_from([2, 3]), st.integers(0, 30)),
        st.tuples(st.just("isr"), st.sets(st.sampled_from([2, 3]))),
    ),
    max_size=30,
)


@given(steps)
def test_the_high_watermark_never_falls_or_passes_the_log_end(script: list[tuple[object, ...]]) -> None:
    leader = progress({1, 2, 3})
    for step in script:
        before = leader.high_watermark
        match step:
            case ("append", int(count)):
                rose = leader.on_append(leader.log_end_offset + count)
            case ("fetch", int(replica), int(offset)):
                rose = leader.on_follower_fetch(replica, min(offset, leader.log_end_offset))
            case ("isr", members):
                rose = leader.on_metadata(frozenset({1, *members}), (1, 2, 3), 1)  # type: ignore[misc]
        assert rose == (leader.high_watermark > before)
        assert before <= leader.high_watermark <= leader.log_end_offset
