"""Decisions for CreateAcls and DeleteAcls. Each ACL and each filter of a request succeeds or fails apart.

Source: AclControlManager and AclApis of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from uuid import UUID

from kbroker.controller.context import Context, TooManyRecords, error_text
from kbroker.controller.decisions import decides
from kbroker.runtime.outcome import Outcome
from kbroker.security.acl_filters import AclFilter, check_new_acl
from wire.errors import KafkaError
from wire.messages.create_acls import AclCreation, AclCreationResult, CreateAclsRequest, CreateAclsResponse
from wire.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from wire.stored.metadata import AccessControlEntryRecord, RemoveAccessControlEntryRecord

_Contents = tuple[int, str, int, str, str, int, int]


@decides(CreateAclsRequest, changes=True, may_be_long=True)
def create_acls(context: Context, request: CreateAclsRequest) -> Outcome[CreateAclsResponse]:
    """Create the ACLs that do not exist; one that exists is no error.

    Per ACL: INVALID_REQUEST. POLICY_VIOLATION for each if the request needs too many records.
    """
    existing = {_contents_of(acl) for acl in context.image.acls.values()}
    records: list[AccessControlEntryRecord] = []
    results = []
    try:
        for creation in request.creations:
            try:
                check_new_acl(creation)
            except KafkaError as error:
                results.append(AclCreationResult(error_code=error.code, error_message=error_text(error)))
                continue
            acl = _record_of(creation, context.new_uuid())
            if (contents := _contents_of(acl)) not in existing:
                existing.add(contents)
                context.require_room(records, 1)
                records.append(acl)
            results.append(AclCreationResult(error_message=None))
    except TooManyRecords as error:
        refused = AclCreationResult(error_code=error.code, error_message=error.message)
        return Outcome([], CreateAclsResponse(results=[refused] * len(request.creations)))
    return Outcome(records, CreateAclsResponse(results=results))


@decides(DeleteAclsRequest, may_be_long=True)
def delete_acls(context: Context, request: DeleteAclsRequest) -> Outcome[DeleteAclsResponse]:
    """Delete the ACLs that match any filter.

    Per filter: INVALID_REQUEST; POLICY_VIOLATION if its ACLs need too many records.
    """
    removed: dict[UUID, None] = {}
    results = []
    for asked in request.filters:
        try:
            wanted = AclFilter.of(asked)
            wanted.validate()
            found = [acl for acl in context.image.acls.values() if wanted.matches(acl)]
            together = removed | dict.fromkeys(acl.id for acl in found)
            if len(together) > (limit := context.settings.max_records_per_decision):
                raise TooManyRecords(f"Cannot remove more than {limit} acls in a single delete operation.")
        except KafkaError as error:
            failed = DeleteAclsFilterResult(error_code=error.code, error_message=error_text(error), matching_acls=[])
            results.append(failed)
            continue
        removed = together
        results.append(DeleteAclsFilterResult(error_message=None, matching_acls=list(map(_match_of, found))))
    records = [RemoveAccessControlEntryRecord(id=id) for id in removed]
    return Outcome(records, DeleteAclsResponse(filter_results=results))


def _contents_of(acl: AccessControlEntryRecord) -> _Contents:
    return (
        acl.resource_type,
        acl.resource_name,
        acl.pattern_type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission_type,
    )


def _record_of(creation: AclCreation, id: UUID) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        id=id,
        resource_type=creation.resource_type,
        resource_name=creation.resource_name,
        pattern_type=creation.resource_pattern_type,
        principal=creation.principal,
        host=creation.host,
        operation=creation.operation,
        permission_type=creation.permission_type,
    )


def _match_of(acl: AccessControlEntryRecord) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission_type,
    )
