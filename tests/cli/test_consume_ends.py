"""When `kbroker consume` ends, with a scripted broker."""

from __future__ import annotations

from tests.cli.conftest import Run
from tests.client.peers import Peers
from tests.client.test_member_failures import JOIN, JOINED, SERVED, SYNC, SYNCED
from wire.errors import ErrorCode
from wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from wire.messages.find_coordinator import FindCoordinatorResponse
from wire.messages.leave_group import LeaveGroupResponse
from wire.messages.list_offsets import ListOffsetsPartitionResponse, ListOffsetsResponse, ListOffsetsTopicResponse
from wire.messages.offset_fetch import OffsetFetchResponse

FETCH, LIST_OFFSETS, OFFSET_FETCH, FIND_COORDINATOR, LEAVE = 1, 2, 9, 10, 13


def test_a_member_without_partitions_is_at_the_end(run: Run) -> None:
    peers = Peers({**SERVED, OFFSET_FETCH: 5})

    def find(_request: object) -> FindCoordinatorResponse:
        ((node_id, host, port),) = peers.places()
        return FindCoordinatorResponse(error_code=0, node_id=node_id, host=host, port=port)

    answers = {
        FIND_COORDINATOR: find,
        JOIN: JOINED,
        SYNC: SYNCED,
        OFFSET_FETCH: OffsetFetchResponse(topics=[]),
        LEAVE: LeaveGroupResponse(error_code=0),
    }
    with peers.serve(answers) as addresses:
        assert run("consume", "-b", addresses[0], "-t", "t", "-g", "g", "-e") == (0, "", "")


def test_the_timeout_counts_all_waits(run: Run) -> None:
    requests: list[object] = []

    def fetch(request: object) -> FetchResponse:
        requests.append(request)
        moved = ErrorCode.NOT_LEADER_OR_FOLLOWER
        answer = PartitionData(
            partition_index=0, error_code=moved, high_watermark=-1, aborted_transactions=None, records=b""
        )
        return FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[answer])])

    found = ListOffsetsPartitionResponse(partition_index=0, error_code=0, offset=0)
    offsets = ListOffsetsResponse(topics=[ListOffsetsTopicResponse(name="t", partitions=[found])])
    with Peers({FETCH: 11, LIST_OFFSETS: 5}).serve({FETCH: fetch, LIST_OFFSETS: offsets}) as addresses:
        words = ["--timeout-ms", 300, "--command-property", "retry.backoff.ms=400"]
        assert run("consume", "-b", addresses[0], "-t", "t", *words) == (0, "", "")
    assert len(requests) == 1
