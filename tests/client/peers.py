"""Scripted brokers of one cluster: what every client asks first is answered."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

from tests.cli.scripted import Scripted
from wire.errors import ErrorCode
from wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

METADATA, API_VERSIONS = 3, 18


class Peers:
    """Brokers with the node ids 1, 2, ...; `leader` leads the partition t-0.

    `served` maps api keys to their newest versions. Each broker has its own further answers.
    """

    def __init__(self, served: Mapping[int, int]) -> None:
        self.leader = 1
        self.topic_error = ErrorCode.NONE
        self.addresses: list[str] = []
        self._served = {API_VERSIONS: 3, METADATA: 9, **served}

    @contextmanager
    def serve(self, *answers: Mapping[int, object]) -> Iterator[list[str]]:
        versions = [ApiVersion(api_key=key, min_version=0, max_version=newest) for key, newest in self._served.items()]
        known = {API_VERSIONS: ApiVersionsResponse(api_keys=versions), METADATA: self._metadata}
        with ExitStack() as stack:
            brokers = [stack.enter_context(Scripted({**known, **each})) for each in answers]
            self.addresses = [each.address for each in brokers]
            yield self.addresses

    def places(self) -> list[tuple[int, str, int]]:
        """Node id, host and port of each broker."""
        found = [address.rpartition(":") for address in self.addresses]
        return [(number, host, int(port)) for number, (host, _, port) in enumerate(found, 1)]

    def _metadata(self, _request: object) -> MetadataResponse:
        partition = MetadataResponsePartition(
            partition_index=0, leader_id=self.leader, replica_nodes=[1, 2], isr_nodes=[1, 2]
        )
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=at, host=host, port=port) for at, host, port in self.places()],
            topics=[
                MetadataResponseTopic(
                    name="t", error_code=self.topic_error, partitions=[] if self.topic_error else [partition]
                )
            ],
        )
