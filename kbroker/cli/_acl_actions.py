"""The actions of `kbroker acl`, and how they print ACLs: a table on a terminal, Kafka's lines elsewhere, or JSON.

Source: AclCommand of Apache Kafka 4.3.1, for what --producer and --consumer mean and how ACLs are printed.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address
from itertools import product
from typing import Any, Final, NamedTuple

from kbroker.cli import CommandFailed, nearest
from kbroker.cli._admin import confirm, explain_code
from kbroker.cli._say import say, say_json
from kbroker.cli._table import is_terminal, print_table
from kbroker.client.cluster import Cluster
from kbroker.security.acl_filters import ANY, AclFilter, number_name
from kbroker.security.acls import ANY_HOST, java_address
from kbroker.security.authorizing import CLUSTER_NAME, OPERATIONS, Operation, PatternType, Permission, ResourceType
from wire.messages.create_acls import AclCreation, CreateAclsRequest
from wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from wire.messages.describe_acls import DescribeAclsRequest

_RESOURCE_TYPES: Final = {
    "topic": ResourceType.TOPIC,
    "group": ResourceType.GROUP,
    "transactional_id": ResourceType.TRANSACTIONAL_ID,
    "delegation_token": ResourceType.DELEGATION_TOKEN,
    "user_principal": ResourceType.USER,
}
_PRODUCER: Final[Mapping[ResourceType, Sequence[Operation]]] = {
    ResourceType.TOPIC: (Operation.CREATE, Operation.DESCRIBE, Operation.WRITE),
    ResourceType.TRANSACTIONAL_ID: (Operation.DESCRIBE, Operation.WRITE),
}
_CONSUMER: Final[Mapping[ResourceType, Sequence[Operation]]] = {
    ResourceType.TOPIC: (Operation.DESCRIBE, Operation.READ),
    ResourceType.GROUP: (Operation.READ,),
}
_REQUEST_ACLS: Final = 1_000


class Acl(NamedTuple):
    """One ACL; the texts are the names of Kafka's enumerations."""

    resource_type: str
    resource_name: str
    pattern_type: str
    principal: str
    host: str
    operation: str
    permission_type: str


def _add(client: Cluster, options: argparse.Namespace) -> None:
    pattern = PatternType[options.resource_pattern_type.upper()]
    entries = [
        AclCreation(
            resource_type=resource_type,
            resource_name=name,
            resource_pattern_type=PatternType.LITERAL if resource_type == ResourceType.CLUSTER else pattern,
            principal=principal,
            host=host,
            operation=operation,
            permission_type=permission,
        )
        for resource_type, name, operations in _resources(options)
        for principal, host, operation, permission in _entries(options, operations)
    ]
    for first in range(0, len(entries), _REQUEST_ACLS):
        for result in client.ask(CreateAclsRequest(creations=entries[first : first + _REQUEST_ACLS])).results:
            _check(result.error_code, result.error_message)
    added = [_shown(one, one.resource_pattern_type, one) for one in entries]
    _print(added, options, title="Adding ACLs for resource")


def _remove(client: Cluster, options: argparse.Namespace) -> None:
    filters = list(_filters(options))
    found = _find(client, filters)
    if len(found) > 1:
        names = [f"{one.resource_type}:{one.resource_name} {_entry_line(one)}" for one in found]
        confirm(f"Remove these {len(found)} ACLs?", names, is_agreed=options.yes)
    if found:
        asked = [one.asking(DeleteAclsFilter) for one in filters]
        for result in client.ask(DeleteAclsRequest(filters=asked)).filter_results:
            _check(result.error_code, result.error_message)
            for each in result.matching_acls:
                _check(each.error_code, each.error_message)
    _print(found, options, title="Removed ACLs for resource")


def _list(client: Cluster, options: argparse.Namespace) -> None:
    _print(_find(client, list(_filters(options)) or [AclFilter()]), options, title="Current ACLs for resource")


def _find(client: Cluster, filters: Iterable[AclFilter]) -> list[Acl]:
    found: dict[Acl, None] = {}
    for one in filters:
        answer = client.ask(one.asking(DescribeAclsRequest))
        _check(answer.error_code, answer.error_message)
        for resource in answer.resources:
            found |= dict.fromkeys(_shown(resource, resource.pattern_type, acl) for acl in resource.acls)
    return sorted(found)


def _resources(options: argparse.Namespace) -> Iterator[tuple[ResourceType, str, Sequence[Operation]]]:
    """The resources that the flags name, with the operations on each."""
    named = [_operation(text) for text in options.operation] or [Operation.ALL]
    roles = [role for role, is_asked in ((_PRODUCER, options.producer), (_CONSUMER, options.consumer)) if is_asked]
    for flag, resource_type in _RESOURCE_TYPES.items():
        operations = list(dict.fromkeys(each for role in roles for each in role.get(resource_type, ())))
        for name in getattr(options, flag):
            if operations or not roles:
                yield resource_type, name, operations if roles else _known(resource_type, named, options)
    if options.idempotent:
        yield ResourceType.CLUSTER, CLUSTER_NAME, [Operation.IDEMPOTENT_WRITE]
    elif options.cluster and not roles:
        yield ResourceType.CLUSTER, CLUSTER_NAME, _known(ResourceType.CLUSTER, named, options)


def _known(kind: ResourceType, named: Sequence[Operation], options: argparse.Namespace) -> Sequence[Operation]:
    """The operations, if a new ACL for them can have an effect on a resource of this type, as in Kafka's tool."""
    known = (Operation.ALL, *OPERATIONS[kind])
    for operation in named if options.action == "add" else ():
        if operation not in known:
            names = ", ".join(each.name for each in known)
            raise CommandFailed(f"there is no {operation.name} on a resource of type {kind.name}; it has {names}")
    return named


def _entries(
    options: argparse.Namespace, operations: Sequence[Operation]
) -> Iterator[tuple[str, str, Operation, Permission]]:
    for permission, principals, hosts in (
        (Permission.ALLOW, options.allow_principal, options.allow_host),
        (Permission.DENY, options.deny_principal, options.deny_host),
    ):
        written = [each for host in hosts for each in _spellings(host, is_new=options.action == "add")]
        for principal, host, operation in product(principals, written or [ANY_HOST], operations):
            yield principal, host, operation, permission


def _spellings(host: str, *, is_new: bool) -> list[str]:
    """The host of a new ACL as brokers compare it, because another text would have no effect. Of an ACL that is to be
    removed also the given text, because Kafka's tools store any.
    """
    try:
        compared = host if host == ANY_HOST else java_address(str(ip_address(host)))
        if is_new and not (scope_id := compared.partition("%")[2] or "0").isdigit():
            raise CommandFailed(f"{host!r}: brokers know the number of an interface and not its name {scope_id!r}")
    except ValueError:
        if is_new:
            raise CommandFailed(f"{host!r} is no IP address, and brokers look up no names") from None
        return [host]
    return [compared] if is_new else list(dict.fromkeys((compared, host)))


def _filters(options: argparse.Namespace) -> Iterator[AclFilter]:
    pattern = PatternType[options.resource_pattern_type.upper()]
    for resource_type, name, operations in _resources(options):
        of_resource = AclFilter(resource_type, name, pattern)
        if resource_type == ResourceType.CLUSTER:
            of_resource = of_resource._replace(pattern_type=ANY)
        entries = list(_entries(options, operations)) if options.action == "remove" else []
        for principal, host, operation, permission in entries:
            yield of_resource._replace(principal=principal, host=host, operation=operation, permission=permission)
        if not entries:
            for whose in options.principal or [None]:
                yield of_resource._replace(principal=whose)
    if options.action == "list" and not any(True for _ in _resources(options)):
        yield from (AclFilter(principal=whose) for whose in options.principal)


def _operation(text: str) -> Operation:
    """An operation by its name, such as AlterConfigs, alter-configs or ALTER_CONFIGS."""
    known = {each.name.replace("_", "").lower(): each for each in Operation if each > Operation.ANY}
    plain = text.replace("_", "").replace("-", "").lower()
    if plain not in known:
        raise CommandFailed(f"there is no operation {text!r}{nearest(plain, known)}")
    return known[plain]


def _check(code: int, message: str | None) -> None:
    if code:
        raise CommandFailed(explain_code(code, message))


def _shown(resource: Any, pattern_type: int, entry: Any) -> Acl:
    """An ACL, from the objects that have its resource and its entry."""
    return Acl(
        number_name(ResourceType, resource.resource_type),
        resource.resource_name,
        number_name(PatternType, pattern_type),
        entry.principal,
        entry.host,
        number_name(Operation, entry.operation),
        number_name(Permission, entry.permission_type),
    )


def _print(acls: Sequence[Acl], options: argparse.Namespace, *, title: str) -> None:
    if options.format == "json":
        say_json([one._asdict() for one in acls])
        return
    if is_terminal():
        rows = [(one.permission_type, *one[3:6], *one[:3]) for one in acls]
        if rows:
            print_table("", ("permission", "principal", "host", "operation", "resource", "name", "pattern"), rows)
        return
    by_resource: dict[tuple[str, ...], list[Acl]] = {}
    for one in acls:
        by_resource.setdefault(one[:3], []).append(one)
    for (resource_type, name, pattern_type), entries in by_resource.items():
        say(f"{title} `ResourcePattern(resourceType={resource_type}, name={name}, patternType={pattern_type})`: ")
        for one in entries:
            say(f"\t{_entry_line(one)}")
        say()


def _entry_line(one: Acl) -> str:
    return (
        f"(principal={one.principal}, host={one.host}, operation={one.operation}, permissionType={one.permission_type})"
    )


ACTIONS: Final[Mapping[str, Callable[[Cluster, argparse.Namespace], None]]] = {
    "list": _list,
    "add": _add,
    "remove": _remove,
}
