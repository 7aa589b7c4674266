"""The filters of DescribeAcls and DeleteAcls, and the checks of a new ACL.

Source  AclBindingFilter, AclControlManager.validateNewAcl, AclApis of Apache Kafka 4.3.1; KIP-290
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple, TypeVar

from kbroker.security.acls import ANY_NAME
from kbroker.security.authorizing import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from wire.errors import ErrorCode, KafkaError
from wire.messages.create_acls import AclCreation
from wire.messages.delete_acls import DeleteAclsFilter
from wire.messages.describe_acls import DescribeAclsRequest
from wire.stored.metadata import AccessControlEntryRecord

ANY = 1

Asked = TypeVar("Asked", DescribeAclsRequest, DeleteAclsFilter)


class AclFilter(NamedTuple):
    """A filter; None and the number ANY match anything.

    Pattern type MATCH finds every ACL that applies to the resource of the name.
    """

    resource_type: int = ANY
    name: str | None = None
    pattern_type: int = ANY
    principal: str | None = None
    host: str | None = None
    operation: int = ANY
    permission: int = ANY

    @classmethod
    def of(cls, asked: DescribeAclsRequest | DeleteAclsFilter) -> AclFilter:
        """The filter in a request."""
        return cls(
            asked.resource_type_filter,
            asked.resource_name_filter,
            asked.pattern_type_filter,
            asked.principal_filter,
            asked.host_filter,
            asked.operation,
            asked.permission_type,
        )

    def asking(self, kind: type[Asked]) -> Asked:
        """The filter as a request, or as a part of one."""
        return kind(
            resource_type_filter=self.resource_type,
            resource_name_filter=self.name,
            pattern_type_filter=self.pattern_type,
            principal_filter=self.principal,
            host_filter=self.host,
            operation=self.operation,
            permission_type=self.permission,
        )

    def validate(self) -> None:
        """Check that its numbers are known, as Kafka does before it deletes. Errors: INVALID_REQUEST."""
        if not (_is_known(ResourceType, self.resource_type) and _is_known(PatternType, self.pattern_type)):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Unknown patternFilter.")
        if not (_is_known(Operation, self.operation) and _is_known(Permission, self.permission)):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "Unknown entryFilter.")

    def matches(self, acl: AccessControlEntryRecord) -> bool:
        """Whether it matches an ACL."""
        return (
            self.resource_type in (ANY, acl.resource_type)
            and self.pattern_type in (ANY, PatternType.MATCH, acl.pattern_type)
            and (self.name is None or self._matches_name(self.name, acl))
            and self.principal in (None, acl.principal)
            and self.host in (None, acl.host)
            and self.operation in (ANY, acl.operation)
            and self.permission in (ANY, acl.permission_type)
        )

    def _matches_name(self, name: str, acl: AccessControlEntryRecord) -> bool:
        if self.pattern_type != PatternType.MATCH:
            return name == acl.resource_name
        if acl.pattern_type == PatternType.PREFIXED:
            return name.startswith(acl.resource_name)
        return acl.resource_name in (name, ANY_NAME)


def check_new_acl(acl: AclCreation) -> None:
    """Check that an ACL may be created. Errors: INVALID_REQUEST, with Kafka's message."""
    if acl.resource_type == ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        raise _invalid(f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    if not acl.resource_name:
        raise _invalid("Invalid empty resource name")
    if not _is_specific(ResourceType, acl.resource_type):
        raise _invalid(f"Invalid resourceType {number_name(ResourceType, acl.resource_type)}")
    if acl.resource_pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        raise _invalid(f"Invalid patternType {number_name(PatternType, acl.resource_pattern_type)}")
    if not _is_specific(Operation, acl.operation):
        raise _invalid(f"Invalid operation {number_name(Operation, acl.operation)}")
    if not _is_specific(Permission, acl.permission_type):
        raise _invalid(f"Invalid permissionType {number_name(Permission, acl.permission_type)}")
    if ":" not in acl.principal:
        why = "no colon is present separating the principal type from the principal name"
        raise _invalid(f"Could not parse principal from `{acl.principal}` ({why})")


def _is_known(kind: type[IntEnum], number: int) -> bool:
    return 0 < number <= max(kind)


def _is_specific(kind: type[IntEnum], number: int) -> bool:
    return ANY < number <= max(kind)


def number_name(kind: type[IntEnum], number: int) -> str:
    """The name of a number; UNKNOWN if a newer version has stored it."""
    return kind(number).name if _is_known(kind, number) else "UNKNOWN"


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
