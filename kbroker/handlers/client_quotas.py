"""DescribeClientQuotas and AlterClientQuotas: the quotas of users, client ids and addresses (KIP-546).

The controller decides the changes. An address (type ip) is an IP address and not a host name.
"""

from __future__ import annotations

from typing import Any

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from kbroker.handlers.controller import forwards
from kbroker.quotas.describing import Filter, entry
from kbroker.security.authorizing import Operation, ResourceType
from wire.codec import encode_element
from wire.errors import ErrorCode, KafkaError
from wire.messages.alter_client_quotas import AlterClientQuotasRequest
from wire.messages.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse

alter_client_quotas = forwards(AlterClientQuotasRequest, versions="0-1", needs=Operation.ALTER_CONFIGS)


def _refused(code: ErrorCode, message: str | None = None) -> DescribeClientQuotasResponse:
    return DescribeClientQuotasResponse(error_code=code, error_message=message, entries=None)


@handles(DescribeClientQuotasRequest, versions="0-1", on_error=lambda _, code: _refused(code))
async def describe_client_quotas(
    request: DescribeClientQuotasRequest, broker: Broker, context: Context
) -> DescribeClientQuotasResponse:
    """Answer from the metadata image. Entities are encoded one by one, which takes less memory than the objects.

    Errors  CLUSTER_AUTHORIZATION_FAILED; UNSUPPORTED_VERSION; INVALID_REQUEST, also if the reply would exceed
            kbroker.max.reply.bytes
    """
    context.demand(Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER)
    try:
        wanted = Filter(request.components, strict=request.strict)
    except KafkaError as error:
        return _refused(error.code, error.message)
    entries: list[Any] = []
    size, max_bytes = 0, broker.settings.limits.kbroker_max_reply_bytes
    for entity, values in broker.image.client_quotas.items():
        if broker.turns.due():
            await broker.turns.next()
        if wanted.admits(entity):
            encoded = encode_element(entry(entity, values), DescribeClientQuotasResponse, context.api_version)
            entries.append(encoded)
            size += len(encoded)
            if size > max_bytes:
                return _refused(ErrorCode.INVALID_REQUEST, "The quotas exceed kbroker.max.reply.bytes; ask for fewer.")
    return DescribeClientQuotasResponse(error_code=ErrorCode.NONE, error_message="", entries=entries)
