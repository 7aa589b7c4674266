"""The same request bytes to both brokers for offsets in the tier; the decoded answers are compared field by field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from compat.oracle.conftest import Pair, Topic, same
from compat.oracle.schema import Message
from compat.oracle.test_fetch import ALL_VERSIONS, fetch, parts, wanted
from compat.oracle.test_offsets import SPECIAL, delete, ending, listing
from compat.tiered.site import HOUR_MS, MAX_TIMESTAMP, ONLY_THE_ACTIVE_ONE, TIERED, YESTERDAY_MS, Records, Sites

OFFSET_MOVED_TO_TIERED_STORAGE, OFFSET_OUT_OF_RANGE, REQUEST_TIMED_OUT = 109, 1, 7
TIER_END, LOG_END, LOG_START = 8, 11, 1


@pytest.fixture(scope="module")
def both(sites: Sites) -> Pair:
    """Both brokers, as the `Pair` of the oracle."""
    return Pair(*(site.address for site in sites.all))


@pytest.fixture(scope="module")
def tiered(sites: Sites, new_topic_name: Callable[[str], str]) -> Topic:
    """Partition 0 starts at 1, has segments 0-3, 4-5 and 6-7 only in the tier, and 8-10 locally; 1 is completely
    local.
    """
    name = sites.create(new_topic_name("same-bytes"), TIERED, ONLY_THE_ACTIVE_ONE, partitions=2)
    sites.produce(name, Records([0, 0], records=2, padding=400))
    sites.produce(name, Records([2, 4], records=2, padding=400))
    sites.produce(name, Records([6], records=3, padding=400))
    sites.expect_remote(name, (0, 3), (4, 5), (6, 7))
    sites.expect_local(name, TIER_END)
    sites.produce(name, Records([0], records=4), partition=1)
    assert sites.each(lambda site: site.delete_records(name, LOG_START)) == LOG_START
    theirs, ours = (site.topic_id(name) for site in sites.all)
    return Topic(name, (theirs, ours))


def no_more_than_kafka(answers: list[Message]) -> list[Message]:
    """Answers to a Fetch, cut to the same records on both sides.

    Stated: Kafka ends at the border of a segment in the tier, and cuts the last batch at the limit, as in the local
    log. kbroker continues with the next segment, and sends complete batches.
    """
    for index, part in parts(answers[0]).items():
        theirs, ours = part["Records"] or b"", parts(answers[1])[index]["Records"] or b""
        shorter = min(len(theirs), len(ours))
        assert bool(theirs) == bool(ours)
        assert theirs[:shorter] == ours[:shorter]
        for answer in answers:
            if answer_records := parts(answer)[index]["Records"]:
                parts(answer)[index]["Records"] = answer_records[:shorter]
    return answers


@pytest.mark.parametrize("version", ALL_VERSIONS)
def test_every_version_reads_from_the_tier(both: Pair, tiered: Topic, version: int) -> None:
    for offset in range(LOG_START, LOG_END):
        answer = same(
            no_more_than_kafka(both.call("Fetch", version, fetch(tiered, version, wanted(0, offset), MaxWaitMs=500)))
        )
        assert len(parts(answer)[0]["Records"]) > 400, offset


@pytest.mark.parametrize("limit", [1, 500, 1_000, 1_800, 2**31 - 1])
@pytest.mark.parametrize("offset", [1, 2, 5, 7])
def test_the_limit_of_a_partition_holds_in_the_tier(both: Pair, tiered: Topic, limit: int, offset: int) -> None:
    message = fetch(tiered, 12, wanted(0, offset, limit=limit), MaxWaitMs=500)
    assert parts(same(no_more_than_kafka(both.call("Fetch", 12, message))))[0]["Records"], "one batch always"


def test_the_tier_and_the_local_log_answer_one_request(both: Pair, tiered: Topic) -> None:
    message = fetch(tiered, 12, wanted(0, 4), wanted(1, 0), MaxWaitMs=500)
    answer = same(no_more_than_kafka(both.call("Fetch", 12, message)))
    assert all(part["Records"] for part in parts(answer).values())


@pytest.mark.parametrize("version", [4, 11, 12, 17])
def test_missing_offsets_are_out_of_range(both: Pair, tiered: Topic, version: int) -> None:
    for offset in (-1, 0, LOG_END + 1, 2**63 - 1):
        answer = same(both.call("Fetch", version, fetch(tiered, version, wanted(0, offset), MaxWaitMs=500)))
        assert parts(answer)[0]["ErrorCode"] == OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize("version", ALL_VERSIONS)
@pytest.mark.parametrize("epoch", [-1, 0, 5])
def test_only_consumers_may_read_from_the_tier(both: Pair, tiered: Topic, version: int, epoch: int) -> None:
    """A follower gets OFFSET_MOVED_TO_TIERED_STORAGE and is never parked (KAFKA-16013), an unknown replica gets an
    error, and a consumer gets data.
    """
    for replica in (-1, -2, -3, 1, 7):
        for last in (-1, 0):
            given: dict[str, Any] = {"CurrentLeaderEpoch": epoch, "LastFetchedEpoch": last}
            part = wanted(0, 4, **{key: value for key, value in given.items() if version >= _SINCE[key]})
            identity = _replica(replica, version)
            answers = both.call("Fetch", version, fetch(tiered, version, part, MaxWaitMs=500, **identity))
            answer = same(no_more_than_kafka(answers))
            if replica == -3 and (epoch <= 0 or version < _SINCE["CurrentLeaderEpoch"]):
                assert parts(answer)[0]["ErrorCode"] == OFFSET_MOVED_TO_TIERED_STORAGE


_SINCE = {"CurrentLeaderEpoch": 9, "LastFetchedEpoch": 12}


def _replica(replica: int, version: int) -> Message:
    """The replica id in the field of the version."""
    return {"ReplicaId": replica} if version < 15 else {"ReplicaState": {"ReplicaId": replica, "ReplicaEpoch": -1}}


@pytest.mark.parametrize("version", range(1, 12))
@pytest.mark.parametrize("replica", [-1, 1])
def test_every_special_offset_and_time_in_every_version(both: Pair, tiered: Topic, version: int, replica: int) -> None:
    hours = [YESTERDAY_MS + hour * HOUR_MS + extra for hour in range(8) for extra in (-1, 0, 1, 2)]
    for timestamp in (*SPECIAL, *hours):
        asked = {**listing(tiered.name, timestamp, 0, 1), "ReplicaId": replica}
        answers = settled(lambda asked=asked: both.call("ListOffsets", version, asked))
        assert (timestamp, same(answers)) == (timestamp, answers[0])


def settled(ask: Callable[[], list[Message]]) -> list[Message]:
    """Repeat the request until no broker times out: Kafka's first access to a segment in the tier sometimes does."""
    for _ in range(20):
        answers = ask()
        codes = {part["ErrorCode"] for answer in answers for part in answer["Topics"][0]["Partitions"]}
        if REQUEST_TIMED_OUT not in codes:
            break
    return answers


def test_the_largest_timestamp_is_found_in_the_tier_too(sites: Sites, new_topic_name: Callable[[str], str]) -> None:
    """A stated difference: Kafka searches only the local log, and finds a smaller one (KAFKA-17552)."""
    name = sites.create(new_topic_name("largest"), TIERED, ONLY_THE_ACTIVE_ONE)
    sites.produce(name, Records([9]))
    # Timestamps decrease: segments roll by size, because only a younger record rolls by time.
    sites.alter(name, segment_bytes=str(1 << 20))
    sites.produce(name, Records([1, 1], padding=600_000))
    sites.expect_remote(name, (0, 1))
    sites.expect_local(name, 2)
    theirs, ours = (site.offset(name, MAX_TIMESTAMP) for site in sites.all)
    assert theirs == (0, 2, YESTERDAY_MS + HOUR_MS + 1000, 0)
    assert ours == ((0, 0, YESTERDAY_MS + 9 * HOUR_MS, 0) if sites.all[1].name == "kbroker" else theirs)


@pytest.mark.parametrize("version", [2, 8, 11])
def test_committed_reads_find_the_same_offsets(both: Pair, tiered: Topic, version: int) -> None:
    for timestamp in (*SPECIAL, YESTERDAY_MS, YESTERDAY_MS + 2 * HOUR_MS + 1):
        asked = {**listing(tiered.name, timestamp, 0, 1), "IsolationLevel": 1}
        same(settled(lambda asked=asked: both.call("ListOffsets", version, asked)))


@pytest.mark.parametrize("version", [2, 3, 4])
def test_the_end_of_an_epoch_that_lies_in_the_tier(both: Pair, tiered: Topic, version: int) -> None:
    for epoch in (-1, 0, 1, 7):
        for current in (-1, 0, 1):
            same(both.call("OffsetForLeaderEpoch", version, ending(tiered.name, epoch, 0, 1, current=current)))


def test_records_of_the_tier_are_deleted_as_in_kafka(both: Pair, tiered: Topic) -> None:
    for offset in (0, LOG_START, LOG_END + 1, -2):
        same(both.call("DeleteRecords", 2, delete(tiered.name, 0, offset)))
