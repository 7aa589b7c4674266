"""Envelope: a broker forwards the request of one of its clients, with the client's principal and address.

The inner request is handled as if the client had sent it here. Its response goes back with its own header. A request
that may not be forwarded, or that cannot be read, fails the envelope and not the connection.

Source: KIP-590; EnvelopeUtils and ForwardingManager of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final

from kbroker.handlers import CloseConnection, Context, handles
from kbroker.handlers.acls import create_acls, delete_acls
from kbroker.metadata.principal import Principal
from kbroker.quorum import ControllerService, asking
from kbroker.security.authorizing import Operation, ResourceType
from wire.errors import ErrorCode, KafkaError, Malformed
from wire.framing import decode_request_header
from wire.messages.envelope import EnvelopeRequest, EnvelopeResponse
from wire.stored.frame import decode_value
from wire.stored.principal import DefaultPrincipalData

FORWARDABLE: Final = frozenset(
    handler.api_key
    for handler in (
        create_acls,
        delete_acls,
        asking.alter_client_quotas,
        asking.alter_configs,
        asking.alter_partition_reassignments,
        asking.alter_user_scram_credentials,
        asking.create_partitions,
        asking.create_topics,
        asking.delete_topics,
        asking.describe_quorum,
        asking.elect_leaders,
        asking.incremental_alter_configs,
        asking.list_partition_reassignments,
        asking.unregister_broker,
        asking.update_features,
    )
)
_ADDRESS_SIZES: Final = (4, 16)
_LENGTH_SIZE: Final = 4


@handles(EnvelopeRequest, versions="0")
async def envelope(request: EnvelopeRequest, service: ControllerService, context: Context) -> EnvelopeResponse:
    """Answer the inner request.

    Errors  CLUSTER_AUTHORIZATION_FAILED, INVALID_REQUEST, UNSUPPORTED_VERSION, PRINCIPAL_DESERIALIZATION_FAILURE
    """
    context.demand(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    principal = _principal(request.request_principal)
    if len(request.client_host_address) not in _ADDRESS_SIZES:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the client's address has neither 4 nor 16 bytes")
    try:
        header, _ = decode_request_header(request.request_data)
    except Malformed as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"the header of the forwarded request: {error}") from error
    if header.api_key not in FORWARDABLE:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"requests with api key {header.api_key} are not forwarded")
    handler = context.served.get(header.api_key)
    if handler is None or header.api_version not in handler.versions:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    inner = Context(
        context.stream,
        context.listener,
        context.served,
        room=context.room,
        principal=principal,
        authorizer=context.authorizer,
        forwarded_from=str(ip_address(request.client_host_address)),
    )
    assert service.answer is not None
    try:
        parts = await service.answer(memoryview(request.request_data), inner)
    except CloseConnection as error:
        raise KafkaError(ErrorCode.INVALID_REQUEST, str(error)) from error
    assert parts is not None, "every API that is forwarded has a response"
    frame = b"".join(part for part in parts if isinstance(part, bytes | bytearray | memoryview))
    return EnvelopeResponse(response_data=frame[_LENGTH_SIZE:])


def _principal(data: bytes | None) -> Principal:
    try:
        found = decode_value(DefaultPrincipalData, data or b"")
    except Malformed as error:
        raise KafkaError(ErrorCode.PRINCIPAL_DESERIALIZATION_FAILURE, str(error)) from error
    return Principal(found.type, found.name)
