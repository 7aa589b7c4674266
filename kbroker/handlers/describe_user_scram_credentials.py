"""DescribeUserScramCredentials: the mechanisms of users, without their secrets (KIP-554).

kafka-configs asks for them whenever it describes users.
"""

from __future__ import annotations

from collections import Counter

from kbroker.broker import Broker
from kbroker.handlers import Context, handles
from kbroker.security.authorizing import Operation, ResourceType
from wire.errors import ErrorCode
from wire.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


@handles(DescribeUserScramCredentialsRequest, versions="0")
async def describe_user_scram_credentials(
    request: DescribeUserScramCredentialsRequest, broker: Broker, context: Context
) -> DescribeUserScramCredentialsResponse:
    """Describe the users of the request, or all if it names none.

    Errors  per user: DUPLICATE_RESOURCE, RESOURCE_NOT_FOUND
    """
    context.demand(Operation.DESCRIBE, ResourceType.CLUSTER)
    known: dict[str, list[CredentialInfo]] = {}
    for (user, mechanism), record in broker.image.scram_credentials.items():
        infos = known.setdefault(user, [])
        infos.append(CredentialInfo(mechanism=mechanism, iterations=record.iterations))
    asked = Counter(user.name for user in request.users or ())
    results = []
    for user in asked or known:
        code, message = ErrorCode.NONE, None
        if asked[user] > 1:
            code = ErrorCode.DUPLICATE_RESOURCE
            message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
        elif user not in known:
            code = ErrorCode.RESOURCE_NOT_FOUND
            message = f"Attempt to describe a user credential that does not exist: {user}"
        results.append(
            DescribeUserScramCredentialsResult(
                user=user,
                error_code=code,
                error_message=message,
                credential_infos=known[user] if code is ErrorCode.NONE else [],
            )
        )
    return DescribeUserScramCredentialsResponse(error_code=ErrorCode.NONE, error_message="", results=results)
