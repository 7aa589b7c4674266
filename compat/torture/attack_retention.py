"""How long a Produce waits while retention deletes 2,000 segments of its partition.

    python -m compat.torture.attack_retention
    python -m compat.torture.attack_retention --broker kafka

The topic is filled with 2,000 records, one segment each. Then retention.bytes is set so that all of them are due, while
a client continues to produce to the same partition.
"""

from __future__ import annotations

import sys
import time

from compat.torture.bystander import Measure, Target, main
from compat.waiting import until
from kbroker.client.blocking import Connection
from kbroker.testing.draws import Draws
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from wire.record_batch import Record, build_batch

TOPIC = "retained"
SEGMENTS = 2_000
WEEK_MS = 7 * 24 * 3_600_000
LONGEST_MS = 100
SETTINGS = {"log.retention.check.interval.ms": "1000", "log.initial.task.delay.ms": "0"}
EARLIEST = -2
SET, TOPIC_RESOURCE = 0, 2


def attack(target: Target, _: Draws) -> list[Measure]:
    """Fill the topic, make retention delete it, and measure the waits of a producer to it."""
    target.create_topic(TOPIC, configs={"segment.ms": "1", "segment.jitter.ms": "0", "retention.bytes": "-1"})
    with target.client() as client:
        client.socket.settimeout(60)
        _fill(client)
        _alter(client, {"segment.ms": str(WEEK_MS)})
        with target.watched(TOPIC) as seen:
            _alter(client, {"retention.bytes": "1"})
            until(lambda: _earliest(client) >= SEGMENTS, patience_s=60)
            time.sleep(3)  # files are renamed and removed for a while after the offset has risen
    return seen.measures(longest_ms=LONGEST_MS)


def _fill(client: Connection) -> None:
    """Produce one record after the other, with timestamps so far apart that each begins a segment."""
    first_ms = int(time.time() * 1000) + 1_000
    for number in range(SEGMENTS + 1):
        batch = build_batch([Record(offset=-1, timestamp=first_ms + 10 * number, key=None, value=b"x" * 100)])
        data = TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=batch)])
        request = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=30_000, topic_data=[data])
        answer = client.ask(request, version=9)
        assert answer.responses[0].partition_responses[0].error_code == 0, answer


def _alter(client: Connection, settings: dict[str, str]) -> None:
    configs = [AlterableConfig(name=key, config_operation=SET, value=value) for key, value in settings.items()]
    resource = AlterConfigsResource(resource_type=TOPIC_RESOURCE, resource_name=TOPIC, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
    answer = client.ask(request, version=1)
    assert answer.responses[0].error_code == 0, answer


def _earliest(client: Connection) -> int:
    partition = ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=EARLIEST)
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=[ListOffsetsTopic(name=TOPIC, partitions=[partition])]
    )
    return int(client.ask(request, version=6).topics[0].partitions[0].offset)


if __name__ == "__main__":
    sys.exit(main(__doc__, attack, settings=SETTINGS))
