"""The decision for AlterUserScramCredentials. The controller stores keys, never the salted password of the request.

As in Kafka, a user may occur only once in a request, even with two mechanisms, and the users are independent.

Source: Kafka's ScramControlManager; KIP-554.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final
from uuid import UUID

from kbroker.config.sasl import SCRAM_SECRET
from kbroker.controller.context import Context, TooManyRecords, error_text
from kbroker.controller.decisions import decides
from kbroker.metadata.image import BROKER_RESOURCE
from kbroker.runtime.outcome import Outcome
from kbroker.security.sasl.scram import BY_NUMBER, MAX_ITERATIONS, MIN_ITERATIONS, credential_of
from wire.errors import ErrorCode, KafkaError
from wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from wire.stored.metadata import ConfigRecord, RemoveUserScramCredentialRecord, UserScramCredentialRecord

SCRAM_LEVEL: Final = 11
"""The first metadata.version with records of credentials, 3.5-IV2."""

Change = ScramCredentialDeletion | ScramCredentialUpsertion
Record = RemoveUserScramCredentialRecord | UserScramCredentialRecord | ConfigRecord


@decides(AlterUserScramCredentialsRequest, changes=True, may_be_long=True)
def alter_user_scram_credentials(
    context: Context, request: AlterUserScramCredentialsRequest
) -> Outcome[AlterUserScramCredentialsResponse]:
    """Decide the credentials of each user.

    Per user: DUPLICATE_RESOURCE, UNACCEPTABLE_CREDENTIAL, UNSUPPORTED_SASL_MECHANISM, RESOURCE_NOT_FOUND,
    UNSUPPORTED_VERSION. POLICY_VIOLATION for each if the request needs too many records.
    """
    changes: dict[str, Change] = {}
    errors: dict[str, KafkaError] = {}
    asked: tuple[Change, ...] = (*request.deletions, *request.upsertions)
    for change in asked:
        if change.name in errors:
            continue
        try:
            if changes.pop(change.name, None) is not None:
                text = "A user credential cannot be altered twice in the same request"
                raise KafkaError(ErrorCode.DUPLICATE_RESOURCE, text)
            _check(context, change)
        except KafkaError as error:
            errors[change.name] = error
        else:
            changes[change.name] = change
    if len(changes) > context.settings.max_records_per_decision:
        errors |= dict.fromkeys(changes, TooManyRecords())
        changes = {}
    records: list[Record] = [_record(change) for change in changes.values()]
    if records and SCRAM_SECRET not in context.image.broker_configs(None):
        records.append(secret_record(context.new_uuid))
    results = [
        *(AlterUserScramCredentialsResult(user=user, error_code=0, error_message=None) for user in changes),
        *(
            AlterUserScramCredentialsResult(user=user, error_code=error.code, error_message=error_text(error))
            for user, error in errors.items()
        ),
    ]
    return Outcome(records, AlterUserScramCredentialsResponse(results=results))


def secret_record(new_uuid: Callable[[], UUID]) -> ConfigRecord:
    """The secret of the cluster from which its nodes make up the credentials of users that do not exist."""
    value = new_uuid().hex + new_uuid().hex
    return ConfigRecord(resource_type=BROKER_RESOURCE, resource_name="", name=SCRAM_SECRET, value=value)


def _check(context: Context, change: Change) -> None:
    """Raise KafkaError if a change is not possible."""
    if context.image.metadata_version < SCRAM_LEVEL:
        text = "The current metadata.version does not support SCRAM"
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, text)
    if not change.name:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty")
    if change.mechanism not in BY_NUMBER:
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    if isinstance(change, ScramCredentialDeletion):
        if (change.name, change.mechanism) not in context.image.scram_credentials:
            text = "Attempt to delete a user credential that does not exist"
            raise KafkaError(ErrorCode.RESOURCE_NOT_FOUND, text)
        return
    if change.iterations < MIN_ITERATIONS:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations")
    if change.iterations > MAX_ITERATIONS:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations")
    if not change.salt or not change.salted_password:
        raise KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, "Salt and salted password must not be empty")


def _record(change: Change) -> Record:
    if isinstance(change, ScramCredentialDeletion):
        return RemoveUserScramCredentialRecord(name=change.name, mechanism=change.mechanism)
    salt = bytes(change.salt)
    made = credential_of(BY_NUMBER[change.mechanism], bytes(change.salted_password), salt, change.iterations)
    return UserScramCredentialRecord(
        name=change.name,
        mechanism=change.mechanism,
        salt=made.salt,
        stored_key=made.stored_key,
        server_key=made.server_key,
        iterations=made.iterations,
    )
