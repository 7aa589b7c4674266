"""The APIs that the controller decides. A handler asks the controller (see `kbroker.controller.decisions`), and replies
when this broker has acted on the decision.

AlterConfigs replaces all settings of a resource. It is deprecated in Kafka, but librdkafka still sends it.
IncrementalAlterConfigs changes single settings. The broker checks both before it asks. DeleteTopics has a file of its
own, because its refusal has a form of its own.
"""

from __future__ import annotations

from typing import Any

from kbroker.broker import Broker
from kbroker.handlers import Context, Handler, Request, handles
from wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from wire.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from wire.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from wire.messages.create_partitions import CreatePartitionsRequest
from wire.messages.create_topics import CreateTopicsRequest
from wire.messages.describe_quorum import DescribeQuorumRequest
from wire.messages.elect_leaders import ElectLeadersRequest
from wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse
from wire.messages.unregister_broker import UnregisterBrokerRequest
from wire.messages.update_features import UpdateFeaturesRequest
from wire.schema import response_class, schema_of


def forwards(request_class: type[Request], *, versions: str) -> Handler[Request]:
    """Declare that the broker forwards an API to the controller."""
    api_key = schema_of(request_class).api_key
    response = None if api_key is None else response_class(api_key)
    assert response is not None, f"{request_class.__name__} has no response class"

    @handles(request_class, versions=versions)
    async def ask(request: Request, broker: Broker, context: Context) -> object:
        answer: Any = await broker.controller.ask(request, response, version=context.api_version, sender=context.sender)
        context.throttle_ms = getattr(answer, "throttle_time_ms", 0)
        await context.log_changes(broker.change_log, request, answer)
        return answer

    return ask


alter_partition_reassignments = forwards(AlterPartitionReassignmentsRequest, versions="0-1")
alter_user_scram_credentials = forwards(AlterUserScramCredentialsRequest, versions="0")
create_partitions = forwards(CreatePartitionsRequest, versions="0-3")
create_topics = forwards(CreateTopicsRequest, versions="2-7")
describe_quorum = forwards(DescribeQuorumRequest, versions="0-2")
elect_leaders = forwards(ElectLeadersRequest, versions="0-2")
unregister_broker = forwards(UnregisterBrokerRequest, versions="0")
update_features = forwards(UpdateFeaturesRequest, versions="0-2")


@handles(AlterConfigsRequest, versions="0-2")
async def alter_configs(request: AlterConfigsRequest, broker: Broker, context: Context) -> AlterConfigsResponse:
    """Replace the settings of each resource."""
    answer = await broker.config_changes.alter(request, AlterConfigsResponse, context.sender)
    await context.log_changes(broker.change_log, request, answer)
    return answer


@handles(IncrementalAlterConfigsRequest, versions="0-1")
async def incremental_alter_configs(
    request: IncrementalAlterConfigsRequest, broker: Broker, context: Context
) -> IncrementalAlterConfigsResponse:
    """Change single settings."""
    answer = await broker.config_changes.alter(request, IncrementalAlterConfigsResponse, context.sender)
    await context.log_changes(broker.change_log, request, answer)
    return answer
