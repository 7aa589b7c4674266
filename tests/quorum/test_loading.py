"""A member of a quorum that loads its logs: what it publishes, and what it fetches."""

from __future__ import annotations

import trio

from kbroker.broker.membership import join_quorum
from kbroker.storage.log_directory import LogDirectory
from tests.quorum.member import DATA, Member
from tests.quorum.site import CLUSTER_ID, Site, creation
from wire.messages.broker_registration import Endpoint
from wire.messages.create_topics import CreateTopicsResponse
from wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)


async def test_a_broker_follows_the_metadata_while_it_loads_its_logs(site: Site) -> None:
    one = Member(site.env.network)
    node = one.node()
    directory = LogDirectory(DATA, disk=one.disk, node_id=1, new_cluster_id=CLUSTER_ID, new_uuid=node.env.new_uuid)
    endpoint = Endpoint(name="PLAINTEXT", host="broker1.example", port=9092, security_protocol=0)
    client = await site.connect()
    await site.register(client, 2)
    async with trio.open_nursery() as nursery:
        member = await join_quorum(node.env, node.settings, directory, nursery, [endpoint])
        async with member.loading():
            before = member.metadata.image
            for name in "abc":
                await site.controller.ask(creation(name, {0: [2, 1]}), CreateTopicsResponse, version=7)
                await trio.sleep(2)
            assert member.metadata.image is before
            asked = DescribeQuorumRequestTopicData(
                topic_name="__cluster_metadata", partitions=[DescribeQuorumRequestPartitionData(partition_index=0)]
            )
            quorum = await client.ask(DescribeQuorumRequest(topics=[asked]))
            (observer,) = quorum.topics[0].partitions[0].observers
            assert observer.log_end_offset == site.image.end_offset
        assert set(member.metadata.image.topics_by_name) == set("abc")
        nursery.cancel_scope.cancel()
    await member.close()
