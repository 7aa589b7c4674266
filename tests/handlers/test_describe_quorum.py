import pytest

from kbroker.testing.memory_node import Client, MemoryBroker
from wire.errors import ErrorCode
from wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
    DescribeQuorumResponse,
)


def quorum(topic: str, *partitions: int) -> DescribeQuorumRequest:
    asked = [DescribeQuorumRequestPartitionData(partition_index=index) for index in partitions]
    return DescribeQuorumRequest(topics=[DescribeQuorumRequestTopicData(topic_name=topic, partitions=asked)])


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_the_only_controller_leads_its_quorum(broker: MemoryBroker, client: Client, version: int) -> None:
    answer = await client.ask(quorum("__cluster_metadata", 0), version=version)
    assert isinstance(answer, DescribeQuorumResponse)
    assert answer.error_code == ErrorCode.NONE
    partition = answer.topics[0].partitions[0]
    assert partition.error_code == ErrorCode.NONE
    assert (partition.leader_id, partition.leader_epoch) == (1, 1)
    assert [voter.replica_id for voter in partition.current_voters] == [1]
    assert partition.current_voters[0].log_end_offset == partition.high_watermark > 0
    assert partition.observers == []
    assert [node.node_id for node in answer.nodes] == ([1] if version == 2 else [])


@pytest.mark.parametrize(
    "request_", [quorum("orders", 0), quorum("__cluster_metadata", 1), quorum("__cluster_metadata", 0, 1)]
)
async def test_every_other_partition_is_unknown_to_the_quorum(client: Client, request_: DescribeQuorumRequest) -> None:
    answer = await client.ask(request_, version=2)
    assert isinstance(answer, DescribeQuorumResponse)
    codes = {partition.error_code for partition in answer.topics[0].partitions}
    assert codes == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
