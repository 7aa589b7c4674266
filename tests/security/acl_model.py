"""The semantics of StandardAuthorizer, one ACL after the other, and a short way to write ACLs."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from uuid import UUID

from kbroker.security.authorizing import Operation, PatternType, Permission, ResourceType
from wire.stored.metadata import AccessControlEntryRecord

_NUMBERS = count(1)

IMPLIES = {
    Operation.DESCRIBE: (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER),
    Operation.DESCRIBE_CONFIGS: (Operation.ALTER_CONFIGS,),
}


def acl(
    principal: str,
    operation: Operation,
    name: str,
    *,
    type: ResourceType = ResourceType.TOPIC,
    host: str = "*",
    pattern: PatternType = PatternType.LITERAL,
    permission: Permission = Permission.ALLOW,
) -> AccessControlEntryRecord:
    """An ACL with an id of its own."""
    return AccessControlEntryRecord(
        id=UUID(int=next(_NUMBERS)),
        resource_type=type,
        resource_name=name,
        pattern_type=pattern,
        principal=principal,
        host=host,
        operation=operation,
        permission_type=permission,
    )


def by_id(acls: Iterable[AccessControlEntryRecord]) -> dict[UUID, AccessControlEntryRecord]:
    """The ACLs as an image has them."""
    return {one.id: one for one in acls}


def applies(one: AccessControlEntryRecord, type: ResourceType, name: str) -> bool:
    """Whether an ACL applies to a resource."""
    if one.resource_type != type:
        return False
    if one.pattern_type == PatternType.PREFIXED:
        return name.startswith(one.resource_name)
    return one.resource_name in (name, "*")


def is_allowed(
    acls: Iterable[AccessControlEntryRecord],
    principal: str,
    host: str,
    operation: Operation,
    *,
    type: ResourceType,
    name: str,
    without_acls: bool = False,
) -> bool:
    """Whether the ACLs allow an operation."""
    applying = [one for one in acls if applies(one, type, name)]
    if not applying:
        return without_acls
    matching = [one for one in applying if one.principal in (principal, "User:*") and one.host in (host, "*")]
    if any(one.permission_type == Permission.DENY and one.operation in (operation, Operation.ALL) for one in matching):
        return False
    wanted = (operation, Operation.ALL, *IMPLIES.get(operation, ()))
    return any(one.permission_type == Permission.ALLOW and one.operation in wanted for one in matching)


def is_allowed_on_any(
    acls: Iterable[AccessControlEntryRecord], principal: str, host: str, operation: Operation, type: ResourceType
) -> bool:
    """Whether the ACLs for exactly this operation, or for ALL, allow it on any resource of a type."""
    matching = [
        one
        for one in acls
        if one.resource_type == type
        and one.principal in (principal, "User:*")
        and one.host in (host, "*")
        and one.operation in (operation, Operation.ALL)
    ]
    patterns = {
        permission: {(one.pattern_type, one.resource_name) for one in matching if one.permission_type == permission}
        for permission in (Permission.ALLOW, Permission.DENY)
    }
    allowed, denied = patterns[Permission.ALLOW], patterns[Permission.DENY]
    everywhere = (PatternType.LITERAL, "*")
    if everywhere in denied or everywhere in allowed:
        return everywhere not in denied
    return any(
        (pattern, name) not in denied
        and not any((PatternType.PREFIXED, name[:length]) in denied for length in range(len(name) + 1))
        for pattern, name in allowed
    )
