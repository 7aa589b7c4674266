"""Three brokers and a controller, all with an authorizer: they work together, and every node gets each ACL."""

from __future__ import annotations

from kbroker.config.authorizer import STANDARD_AUTHORIZER
from kbroker.metadata.principal import Principal
from kbroker.security.authorizing import Operation, ResourceType
from kbroker.testing.cluster import MemoryNode, memory_cluster
from tests.handlers.test_acls import entry
from wire.messages.create_acls import CreateAclsRequest
from wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from wire.record_batch import Record, build_batch

AUTHORIZER = {"authorizer.class.name": STANDARD_AUTHORIZER}
ALICE = Principal("User", "alice")


def may_read(node: MemoryNode) -> bool:
    authorizer = node.broker.authorizer
    return authorizer is not None and authorizer.allows(ALICE, "10.0.0.1", Operation.READ, ResourceType.TOPIC, "orders")


async def test_brokers_that_are_super_users_replicate_and_pass_acls_on() -> None:
    async with memory_cluster(3, settings={**AUTHORIZER, "super.users": "User:ANONYMOUS"}, has_tier=False) as cluster:
        topic = CreatableTopic(name="orders", num_partitions=1, replication_factor=3, assignments=[], configs=[])
        created = await cluster.ask(2, CreateTopicsRequest(topics=[topic], timeout_ms=10_000, validate_only=False))
        assert created.topics[0].error_code == 0
        await cluster.wait_healthy()
        leader = cluster.image.topics_by_name["orders"].partitions[0].leader
        await cluster.until(lambda: cluster.nodes[leader].replica("orders"))
        data = PartitionProduceData(index=0, records=build_batch([Record(timestamp=0, value=b"1")]))
        request = ProduceRequest(
            transactional_id=None,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[TopicProduceData(name="orders", partition_data=[data])],
        )
        produced = await cluster.ask(leader, request, version=11)
        assert produced.responses[0].partition_responses[0].error_code == 0
        assert not any(may_read(node) for node in cluster.brokers)
        answer = await cluster.ask(2, CreateAclsRequest(creations=[entry()]))
        assert [result.error_code for result in answer.results] == [0]
        await cluster.until(lambda: all(may_read(node) for node in cluster.brokers))
        follower = cluster.nodes[leader % 3 + 1]
        await follower.kill()
        await follower.start()
        assert may_read(follower)
