"""The APIs that the controller decides. A handler asks the controller (see `kbroker.controller.decisions`), and replies
when this broker has acted on the decision. The client's rights are checked here, and again by a controller in another
process, which gets the client's principal in the Envelope.

AlterConfigs replaces all settings of a resource. It is deprecated in Kafka, but librdkafka still sends it.
IncrementalAlterConfigs changes single settings. The broker checks both before it asks. DeleteTopics and CreateTopics
have files of their own, because their answers have forms of their own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from kbroker.broker import Broker
from kbroker.handlers import Context, Handler, Request, handles
from kbroker.handlers.permits import demand_settings, permit_partitions
from kbroker.security.authorizing import Operation, ResourceType
from wire.errors import ErrorCode
from wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from wire.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
)
from wire.messages.create_partitions import CreatePartitionsRequest
from wire.messages.describe_quorum import DescribeQuorumRequest
from wire.messages.elect_leaders import ElectLeadersRequest
from wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse
from wire.messages.unregister_broker import UnregisterBrokerRequest
from wire.messages.update_features import UpdateFeaturesRequest
from wire.refusals import refused
from wire.schema import response_class, schema_of

Permits = Callable[[Any, Broker, Context], Awaitable[tuple[Any, list[Any]]]]
"""Splits a request into what the client may do and the refusals of the rest; see permits.py."""


async def decided(request: Any, response: type, broker: Broker, context: Context) -> Any:
    """The controller's answer to the request of a client. What it changes is logged."""
    answer: Any = await broker.controller.ask(request, response, version=context.api_version, sender=context.sender)
    context.throttle_ms = getattr(answer, "throttle_time_ms", 0)
    await context.log_changes(broker.change_log, request, answer)
    return answer


def _refused_users(request: AlterUserScramCredentialsRequest, code: ErrorCode) -> AlterUserScramCredentialsResponse:
    """The same error for each user of the request."""
    users = dict.fromkeys(change.name for changes in (request.deletions, request.upsertions) for change in changes)
    results = [AlterUserScramCredentialsResult(user=user, error_code=code, error_message=None) for user in users]
    return AlterUserScramCredentialsResponse(results=results)


def forwards(
    request_class: type[Request],
    *,
    versions: str,
    needs: Operation | None = None,
    permits: Permits | None = None,
    on_error: Callable[[Request, ErrorCode], Any] | None = None,
) -> Handler[Request]:
    """Declare that the broker forwards an API to the controller.

    needs    the operation on the cluster for which the client needs the right
    permits  what the client may do if it needs a right for each resource of the request
    """
    assert (needs is None) != (permits is None), f"who may send {request_class.__name__}?"
    api_key = schema_of(request_class).api_key
    response = None if api_key is None else response_class(api_key)
    assert response is not None, f"{request_class.__name__} has no response class"
    results = next((field.name for field in schema_of(response).fields if field.is_array), "")

    @handles(request_class, versions=versions, on_error=on_error)
    async def ask(request: Request, broker: Broker, context: Context) -> object:
        if needs is not None:
            context.demand(needs, ResourceType.CLUSTER)
        if permits is None or context.authorizer is None:
            return await decided(request, response, broker, context)
        permitted, denied = await permits(request, broker, context)
        answer = await decided(permitted, response, broker, context)
        getattr(answer, results).extend(denied)
        return answer

    return ask


alter_partition_reassignments = forwards(
    AlterPartitionReassignmentsRequest,
    versions="0-1",
    needs=Operation.ALTER,
    on_error=refused,  # Java's clients look at the results before the code at the top
)
alter_user_scram_credentials = forwards(
    AlterUserScramCredentialsRequest, versions="0", needs=Operation.ALTER, on_error=_refused_users
)
create_partitions = forwards(CreatePartitionsRequest, versions="0-3", permits=permit_partitions)
describe_quorum = forwards(DescribeQuorumRequest, versions="0-2", needs=Operation.DESCRIBE)
elect_leaders = forwards(ElectLeadersRequest, versions="0-2", needs=Operation.ALTER)
unregister_broker = forwards(UnregisterBrokerRequest, versions="0", needs=Operation.ALTER)
update_features = forwards(UpdateFeaturesRequest, versions="0-2", needs=Operation.ALTER)


@handles(AlterConfigsRequest, versions="0-2")
async def alter_configs(request: AlterConfigsRequest, broker: Broker, context: Context) -> AlterConfigsResponse:
    """Replace the settings of each resource."""
    answer: AlterConfigsResponse = await _alter(request, AlterConfigsResponse, broker, context)
    return answer


@handles(IncrementalAlterConfigsRequest, versions="0-1")
async def incremental_alter_configs(
    request: IncrementalAlterConfigsRequest, broker: Broker, context: Context
) -> IncrementalAlterConfigsResponse:
    """Change single settings."""
    answer: IncrementalAlterConfigsResponse = await _alter(request, IncrementalAlterConfigsResponse, broker, context)
    return answer


async def _alter(request: Any, response: type, broker: Broker, context: Context) -> Any:
    def demand(resource: Any) -> None:
        demand_settings(context, Operation.ALTER_CONFIGS, resource)

    answer: Any = await broker.config_changes.alter(request, response, context.sender, demand=demand)
    await context.log_changes(broker.change_log, request, answer)
    return answer
