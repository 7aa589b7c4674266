"""The requests of a follower, its session, and what it does with each answer."""

from collections.abc import Iterable
from uuid import UUID

import pytest

from kbroker.replication.follower import (
    FetchLimits,
    Followed,
    ReplicaFetcher,
    Step,
    epoch_before,
    fetch_version,
    list_offsets_version,
    step_for,
    truncation_offset,
)
from kbroker.replication.partition import Partition
from kbroker.storage.leader_epoch import LeaderEpochs
from tests.replication.partitions import partition, placed
from wire.errors import ErrorCode
from wire.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
    ReplicaState,
)
from wire.record_batch import Record, build_batch

LIMITS = FetchLimits(500, 1, 10 << 20, 1 << 20)
TOPIC = UUID(int=1)


def follower(index: int = 0, epoch: int = 3) -> Partition:
    made = partition(image=placed(replicas=(1, 2), isr=(1, 2), leader=2, epoch=epoch))
    made.index = index
    return made


def fetcher(*indexes: int) -> tuple[ReplicaFetcher, list[Followed]]:
    made = ReplicaFetcher(1)
    followed = [Followed(follower(index), 3) for index in indexes]
    for one in followed:
        made.follow(one)
    return made, followed


def request(made: ReplicaFetcher, now_ms: int = 0) -> FetchRequest:
    sent = made.request(now_ms, LIMITS, broker_epoch=9, version=17)
    assert sent is not None
    return sent


def indexes(sent: FetchRequest) -> list[int]:
    return [one.partition for topic in sent.topics for one in topic.partitions]


def forgotten(sent: FetchRequest) -> set[int]:
    return {index for topic in sent.forgotten_topics_data for index in topic.partitions}


def response(answered: Iterable[int] = (), *, session: int = 77, code: ErrorCode = ErrorCode.NONE) -> FetchResponse:
    data = [
        PartitionData(partition_index=index, high_watermark=0, aborted_transactions=None, records=b"")
        for index in answered
    ]
    return FetchResponse(
        error_code=code, session_id=session, responses=[FetchableTopicResponse(topic_id=TOPIC, partitions=data)]
    )


def grow(followed: Followed) -> None:
    followed.partition.log.append(
        build_batch([Record(timestamp=1, value=b"x")]), leader_epoch=followed.leader_epoch, timestamp_ms=1
    )


def test_a_request_has_the_position_of_each_log() -> None:
    made, (one,) = fetcher(0)
    grow(one)
    made.note_position(one)
    sent = request(made)
    assert sent.replica_state == ReplicaState(replica_id=1, replica_epoch=9)
    assert (sent.session_id, sent.session_epoch, sent.replica_id) == (0, 0, -1)
    assert (sent.max_wait_ms, sent.min_bytes, sent.max_bytes) == (500, 1, 10 << 20)
    assert sent.topics[0].topic_id == TOPIC
    assert sent.topics[0].partitions == [
        FetchPartition(
            partition=0,
            current_leader_epoch=3,
            fetch_offset=1,
            last_fetched_epoch=3,
            log_start_offset=0,
            partition_max_bytes=1 << 20,
        )
    ]


def test_an_empty_log_names_no_epoch() -> None:
    assert request(fetcher(0)[0]).topics[0].partitions[0].last_fetched_epoch == -1


def test_an_idle_session_names_no_partition() -> None:
    made, (one, _) = fetcher(0, 1)
    assert indexes(request(made)) == [0, 1]
    made.take(response([0, 1]))
    second = request(made)
    assert (second.session_id, second.session_epoch, indexes(second)) == (77, 1, [])
    made.take(response())
    grow(one)
    made.note_position(one)
    third = request(made)
    assert (third.session_epoch, indexes(third)) == (2, [0])


def test_without_a_session_every_request_is_complete() -> None:
    made, _ = fetcher(0, 1)
    for _ in range(2):
        sent = request(made)
        assert (sent.session_id, sent.session_epoch, indexes(sent)) == (0, 0, [0, 1])
        made.take(response([0, 1], session=0))


def test_without_a_session_partitions_with_records_go_last() -> None:
    made, _ = fetcher(0, 1)
    request(made)
    answer = response([0, 1], session=0)
    answer.responses[0].partitions[0].records = b"x"
    made.take(answer)
    assert indexes(request(made)) == [1, 0]


@pytest.mark.parametrize(
    ("code", "session_id"),
    [
        (ErrorCode.FETCH_SESSION_ID_NOT_FOUND, 0),
        (ErrorCode.INVALID_FETCH_SESSION_EPOCH, 77),
        (ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR, 77),
    ],
)
def test_a_session_error_starts_again_with_a_complete_request(code: ErrorCode, session_id: int) -> None:
    made, _ = fetcher(0, 1)
    request(made)
    made.take(response([0, 1]))
    request(made)
    assert made.take(response(code=code)) == []
    again = request(made)
    assert (again.session_id, again.session_epoch, indexes(again)) == (session_id, 0, [0, 1])


def test_a_lost_connection_starts_a_new_session() -> None:
    made, _ = fetcher(0)
    request(made)
    made.take(response([0]))
    request(made)
    made.start_again()
    again = request(made)
    assert (again.session_id, again.session_epoch, indexes(again)) == (77, 0, [0]), "the source drops the old session"


def test_a_delayed_partition_leaves_the_session_until_it_is_ready() -> None:
    made, (one, _) = fetcher(0, 1)
    request(made)
    made.take(response([0, 1]))
    made.delay(one, 1_000)
    assert made.next_ready_ms() == 1_000
    sent = request(made, 999)
    assert (indexes(sent), forgotten(sent)) == ([], {0})
    made.take(response())
    sent = request(made, 1_000)
    assert (indexes(sent), forgotten(sent)) == ([0], set())


def test_nothing_is_requested_while_all_partitions_wait() -> None:
    made, (one,) = fetcher(0)
    request(made)
    made.take(response([0]))
    made.delay(one, 1_000)
    assert made.request(0, LIMITS, broker_epoch=9, version=17) is None
    sent = request(made, 1_000)
    assert (sent.session_id, sent.session_epoch) == (77, 0), "the source drops the old session"


def test_a_stopped_partition_waits_for_newer_metadata() -> None:
    made, (one, _) = fetcher(0, 1)
    request(made)
    made.take(response([0, 1]))
    made.stop(one)
    made.note_position(one)
    assert forgotten(request(made)) == {0}
    made.take(response())
    made.follow(Followed(one.partition, 4))
    sent = request(made)
    assert [each.current_leader_epoch for each in sent.topics[0].partitions] == [4]


def test_an_answer_for_an_earlier_leader_epoch_is_ignored() -> None:
    made, (one, two) = fetcher(0, 1)
    request(made)
    made.follow(Followed(one.partition, 4))
    made.drop(two.id)
    assert made.take(response([0, 1])) == []
    sent = request(made)
    assert ([each.current_leader_epoch for each in sent.topics[0].partitions], forgotten(sent)) == ([4], {1})


def test_answers_for_unknown_partitions_are_ignored() -> None:
    made, (one,) = fetcher(0)
    request(made)
    assert [followed for followed, _ in made.take(response([0, 5]))] == [one]


def test_old_versions_send_the_replica_id_alone() -> None:
    made, _ = fetcher(0)
    sent = made.request(0, LIMITS, broker_epoch=9, version=14)
    assert sent is not None
    assert (sent.replica_id, sent.replica_state) == (1, None)


@pytest.mark.parametrize(
    ("level", "fetch", "list_offsets"),
    [
        (7, 13, 7),
        (9, 14, 8),
        (10, 15, 8),
        (18, 15, 8),
        (19, 16, 8),
        (21, 17, 9),
        (25, 17, 10),
        (27, 18, 10),
        (30, 18, 11),
    ],
)
def test_the_metadata_version_pins_the_versions(level: int, fetch: int, list_offsets: int) -> None:
    assert (fetch_version(level), list_offsets_version(level)) == (fetch, list_offsets)


def data(code: ErrorCode = ErrorCode.NONE, diverging: EpochEndOffset | None = None) -> PartitionData:
    return PartitionData(
        partition_index=0,
        error_code=code,
        high_watermark=0,
        diverging_epoch=diverging,
        aborted_transactions=None,
        records=b"",
    )


@pytest.mark.parametrize(
    ("code", "step"),
    [
        (ErrorCode.NONE, Step.APPEND),
        (ErrorCode.OFFSET_OUT_OF_RANGE, Step.LOOK_UP),
        (ErrorCode.OFFSET_MOVED_TO_TIERED_STORAGE, Step.BUILD_FROM_TIER),
        (ErrorCode.FENCED_LEADER_EPOCH, Step.AWAIT_METADATA),
        (ErrorCode.UNKNOWN_LEADER_EPOCH, Step.DELAY),
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, Step.DELAY),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, Step.DELAY),
        (ErrorCode.UNKNOWN_TOPIC_ID, Step.DELAY),
        (ErrorCode.INCONSISTENT_TOPIC_ID, Step.DELAY),
        (ErrorCode.KAFKA_STORAGE_ERROR, Step.DELAY),
        (ErrorCode.CORRUPT_MESSAGE, Step.DELAY),
    ],
)
def test_each_error_has_its_step(code: ErrorCode, step: Step) -> None:
    assert step_for(data(code)) is step


def test_a_diverging_epoch_truncates() -> None:
    assert step_for(data(diverging=EpochEndOffset(epoch=0, end_offset=0))) is Step.TRUNCATE
    assert step_for(data(diverging=EpochEndOffset())) is Step.APPEND


@pytest.mark.parametrize(
    ("epochs", "leaders_epoch", "leaders_end", "offset"),
    [
        ([(1, 0), (2, 10)], 1, 7, 7),  # the leader has less of the epoch
        ([(1, 0), (2, 10)], 1, 15, 10),  # the follower has less of it
        ([(1, 0), (2, 10)], 2, 30, 20),  # neither: the end of the log
        ([(1, 0), (4, 10)], 3, 15, 10),  # unknown here: the end of the largest epoch below
        ([(3, 5)], 2, 15, 5),  # older than all that is known here
        ([(3, 5)], 4, 15, 15),  # newer than all that is known here
        ([], 4, 15, 15),
        ([], 4, 25, 20),
    ],
)
def test_r8_truncation_follows_both_histories(
    epochs: list[tuple[int, int]], leaders_epoch: int, leaders_end: int, offset: int
) -> None:
    assert truncation_offset(leaders_epoch, leaders_end, LeaderEpochs(epochs), log_end_offset=20) == offset


@pytest.mark.parametrize(
    ("offset", "leader_epoch", "earlier", "expected"),
    [
        (90, 3, (1, 90), 1),  # epoch 2 has no records; epoch 1 ends where the local log starts
        (98, 4, (3, 98), 3),
        (95, 3, (1, 90), 3),  # epoch 3 began before the local log
        (50, 0, (-1, -1), 0),  # there is no earlier epoch
    ],
)
def test_kip_405_the_epoch_before_the_local_log_start(
    offset: int, leader_epoch: int, earlier: tuple[int, int], expected: int
) -> None:
    assert epoch_before(offset, leader_epoch, *earlier) == expected
