"""The decisions of Kafka's StandardAuthorizer, made in time that does not grow with the number of ACLs.

An ACL allows or denies an operation on a resource to a principal from a host. It applies to the resource of its name
(LITERAL), to all resources whose names begin with its name (PREFIXED), or to all resources of its type (LITERAL, "*").
"User:*" matches every principal, and host "*" every address. A DENY wins over every ALLOW. Operation ALL is all
operations. An ALLOW of READ, WRITE, DELETE or ALTER also allows DESCRIBE, and one of ALTER_CONFIGS allows
DESCRIBE_CONFIGS; a DENY implies nothing. If no ACL matches, the operation is denied. If no ACL of any principal applies
to the resource, allow.everyone.if.no.acl.found decides. Super users may do everything.

Theory of operation: for each resource pattern the table has the operations that each (principal, host) is allowed and
denied, as bits. A decision combines the patterns that apply: the name, "*", and one for each length of a prefix of that
type. So it costs a few dictionary lookups, and answers for all operations at once, which the cache keeps.

Source: StandardAuthorizerData and Authorizer.authorizeByResourceType of Apache Kafka 4.3.1; KIP-11, KIP-290, KIP-801.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import IPv6Address
from typing import Final
from uuid import UUID

from kbroker.metadata.principal import Principal
from kbroker.security.authorizing import Operation, PatternType, Permission, ResourceType
from wire.stored.metadata import AccessControlEntryRecord

ANY_NAME: Final = "*"
ANY_HOST: Final = "*"
EVERYBODY: Final = "User:*"

_ALL_OPERATIONS: Final = -1  # every bit is set
_IMPLYING: Final[Mapping[int, int]] = {
    Operation.READ: 1 << Operation.DESCRIBE,
    Operation.WRITE: 1 << Operation.DESCRIBE,
    Operation.DELETE: 1 << Operation.DESCRIBE,
    Operation.ALTER: 1 << Operation.DESCRIBE,
    Operation.ALTER_CONFIGS: 1 << Operation.DESCRIBE_CONFIGS,
}
_SOME_NAME: Final = "hardcode"  # the name that Kafka asks about first when any resource will do
_COMPARED_AT_ONCE: Final = 100
_MAX_CACHED: Final = 10_000
_LONGEST_CACHED_NAME: Final = 249  # of topics; a group's name may have 32 KiB

_Pattern = tuple[int, str]
"""The type and the name of the resources of ACLs."""


def java_address(host: str) -> str:
    """An address as Java writes it, which ACLs have: IPv6 with all eight groups and without leading zeros. A link-local
    address keeps its scope id, which is the number of the interface.
    """
    if ":" not in host:
        return host
    text, _, scope_id = host.partition("%")
    address = IPv6Address(text)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    written = ":".join(f"{int(part, 16):x}" for part in address.exploded.split(":"))
    return f"{written}%{scope_id}" if scope_id and address.is_link_local else written


class _Rights:
    """The operations that the ACLs of one pattern allow and deny to one principal from one host, as bits.

    allowed   with the implied operations
    named     without them
    """

    __slots__ = ("_entries", "allowed", "denied", "named")

    def __init__(self) -> None:
        self._entries: list[tuple[int, int]] = []
        self.allowed = self.named = self.denied = 0

    def add(self, operation: int, permission: int) -> None:
        self._entries.append((operation, permission))
        self._include(operation, permission)

    def remove(self, operation: int, permission: int) -> bool:
        """Remove an entry; returns whether no entry is left."""
        self._entries.remove((operation, permission))
        self.allowed = self.named = self.denied = 0
        for entry in self._entries:
            self._include(*entry)
        return not self._entries

    def _include(self, operation: int, permission: int) -> None:
        bits = _ALL_OPERATIONS if operation == Operation.ALL else 1 << max(operation, 0)
        if permission == Permission.ALLOW:
            self.named |= bits
            self.allowed |= bits | _IMPLYING.get(operation, 0)
        else:
            self.denied |= bits


_Holders = dict[tuple[str, str], _Rights]
"""The rights by principal and host, of the ACLs of one pattern."""


class AclTable:
    """A set of ACLs, arranged for decisions."""

    def __init__(self) -> None:
        self._literal: dict[_Pattern, _Holders] = {}
        self._prefixed: dict[_Pattern, _Holders] = {}
        self._lengths: dict[int, Counter[int]] = {}  # of prefixes, by type
        self._patterns_of: dict[tuple[str, int], Counter[tuple[bool, str]]] = {}  # by principal and type

    def add(self, acl: AccessControlEntryRecord) -> None:
        """Add an ACL."""
        is_literal, pattern = acl.pattern_type == PatternType.LITERAL, (acl.resource_type, acl.resource_name)
        patterns = self._literal if is_literal else self._prefixed
        holders = patterns.get(pattern)
        if holders is None:
            holders = patterns[pattern] = {}
            if not is_literal:
                self._lengths.setdefault(acl.resource_type, Counter())[len(acl.resource_name)] += 1
        holder = (acl.principal, acl.host)
        rights = holders.get(holder)
        if rights is None:
            rights = holders[holder] = _Rights()
            self._patterns_of.setdefault((acl.principal, acl.resource_type), Counter())[
                is_literal, acl.resource_name
            ] += 1
        rights.add(acl.operation, acl.permission_type)

    def remove(self, acl: AccessControlEntryRecord) -> None:
        """Remove an ACL that was added."""
        is_literal, pattern = acl.pattern_type == PatternType.LITERAL, (acl.resource_type, acl.resource_name)
        patterns = self._literal if is_literal else self._prefixed
        holders = patterns[pattern]
        if not holders[acl.principal, acl.host].remove(acl.operation, acl.permission_type):
            return
        del holders[acl.principal, acl.host]
        _discard(self._patterns_of, (acl.principal, acl.resource_type), (is_literal, acl.resource_name))
        if not holders:
            del patterns[pattern]
            if not is_literal:
                _discard(self._lengths, acl.resource_type, len(acl.resource_name))

    def decide(self, principal: str, host: str, resource_type: int, name: str) -> tuple[int, int] | None:
        """The operations on a resource that are allowed and denied, as bits; None if no ACL applies to the resource.

        Shape  principal is "User:alice"; host is an address as Java writes it
        """
        found = False
        allowed = denied = 0
        for holders in self._applying(resource_type, name):
            found = True
            for rights in _rights_of(holders, principal, host):
                allowed |= rights.allowed
                denied |= rights.denied
        return (allowed, denied) if found else None

    def _applying(self, resource_type: int, name: str) -> Iterator[_Holders]:
        """The rights of all patterns that apply to a resource."""
        literal = self._literal
        if (holders := literal.get((resource_type, name))) is not None:
            yield holders
        if name != ANY_NAME and (holders := literal.get((resource_type, ANY_NAME))) is not None:
            yield holders
        yield from self._prefixes(resource_type, name)

    def _prefixes(self, resource_type: int, name: str) -> Iterator[_Holders]:
        prefixed, size = self._prefixed, len(name)
        for length in self._lengths.get(resource_type, ()):
            if length <= size and (holders := prefixed.get((resource_type, name[:length]))) is not None:
                yield holders

    def allows_any(self, principal: str, host: str, operation: int, resource_type: int) -> bool:
        """Whether the ACLs for exactly this operation, or for ALL, allow it on any resource of a type.

        As in Kafka, operations that imply this one do not count, and a denied name does not if a longer name is
        allowed.
        """
        bit = 1 << operation
        everywhere = list(_rights_of(self._literal.get((resource_type, ANY_NAME), {}), principal, host))
        if any(rights.denied & bit for rights in everywhere):
            return False
        if any(rights.named & bit for rights in everywhere):
            return True
        for whose in (principal, EVERYBODY):
            for is_literal, name in self._patterns_of.get((whose, resource_type), ()):
                holders = (self._literal if is_literal else self._prefixed)[resource_type, name]
                rights = list(_rights_of(holders, principal, host))
                if not any(one.named & bit for one in rights) or any(one.denied & bit for one in rights):
                    continue
                prefixes = self._prefixes(resource_type, name)
                if not any(one.denied & bit for above in prefixes for one in _rights_of(above, principal, host)):
                    return True
        return False


def _rights_of(holders: _Holders, principal: str, host: str) -> Iterator[_Rights]:
    """The rights of the entries that match a principal and a host."""
    for key in ((principal, host), (principal, ANY_HOST), (EVERYBODY, host), (EVERYBODY, ANY_HOST)):
        if (rights := holders.get(key)) is not None:
            yield rights


class StandardAuthorizer:
    """Decides by super users and ACLs; satisfies Authorizer. Until its first ACLs it allows only super users.

    Shape   super_users are texts such as "User:alice"
    Bound   decisions that are cached: _MAX_CACHED; every change of the ACLs discards them
    """

    def __init__(self, *, super_users: Iterable[str] = (), allows_without_acls: bool = False) -> None:
        self.super_users = frozenset(super_users)
        self.allows_without_acls = allows_without_acls
        self._acls: Mapping[UUID, AccessControlEntryRecord] = {}
        self._table = AclTable()
        self._is_ready = False
        self._allowed: dict[tuple[Principal, str, int, str], int] = {}
        self._allowed_any: dict[tuple[Principal, str, int, int], bool] = {}

    @property
    def count(self) -> int:
        """The number of ACLs in force."""
        return len(self._acls)

    def update(self, acls: Mapping[UUID, AccessControlEntryRecord]) -> None:
        """Use these ACLs from now on; see `update_in_steps`."""
        for _ in self.update_in_steps(acls):
            pass

    def update_in_steps(self, acls: Mapping[UUID, AccessControlEntryRecord]) -> Iterator[None]:
        """Use these ACLs, which must not change afterwards; yields often, so that the caller can pause.

        Additions come before removals, DENY first among the additions and last among the removals. So between the steps
        a client has no right that neither the old nor the new ACLs give it.
        """
        before = self._acls
        if acls is before and self._is_ready:
            return
        added: list[AccessControlEntryRecord] = []
        removed: list[AccessControlEntryRecord] = []
        for found, these, others in ((added, acls, before), (removed, before, acls)):
            for number, (id, record) in enumerate(these.items()):
                if others.get(id) is not record:
                    found.append(record)
                if number % _COMPARED_AT_ONCE == 0:
                    yield
        self._acls = acls
        for change, records, comes_first in (
            (self._table.add, added, Permission.DENY),
            (self._table.remove, removed, Permission.ALLOW),
        ):
            for record in sorted(records, key=lambda record: record.permission_type != comes_first):
                change(record)
                self._forget()
                yield
        self._is_ready = True
        self._forget()

    def _forget(self) -> None:
        if self._allowed:
            self._allowed = {}
        if self._allowed_any:
            self._allowed_any = {}

    def operations(self, principal: Principal, host: str, resource_type: ResourceType, name: str) -> int:
        """The operations that a client may perform on a resource: bit n stands for the operation of number n."""
        key = (principal, host, resource_type, name)
        found = self._allowed.get(key)
        if found is None:
            found = self._decide(principal, host, resource_type, name)
            if len(name) <= _LONGEST_CACHED_NAME:
                if len(self._allowed) >= _MAX_CACHED:
                    self._allowed.clear()
                self._allowed[key] = found
        return found

    def _decide(self, principal: Principal, host: str, resource_type: int, name: str) -> int:
        who = str(principal)
        if who in self.super_users:
            return _ALL_OPERATIONS
        if not self._is_ready:
            return 0
        decided = self._table.decide(who, java_address(host), resource_type, name)
        if decided is None:
            return _ALL_OPERATIONS if self.allows_without_acls else 0
        allowed, denied = decided
        return allowed & ~denied

    def allows(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        """See Authorizer."""
        return bool(self.operations(principal, host, resource_type, name) >> operation & 1)

    def allows_any(self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        """See Authorizer."""
        key = (principal, host, operation, resource_type)
        found = self._allowed_any.get(key)
        if found is None:
            # Kafka asks about one name first: super users pass, and all clients if they may do everything without ACLs.
            found = self.allows(principal, host, operation, resource_type, _SOME_NAME) or (
                self._is_ready and self._table.allows_any(str(principal), java_address(host), operation, resource_type)
            )
            if len(self._allowed_any) >= _MAX_CACHED:
                self._allowed_any.clear()
            self._allowed_any[key] = found
        return found


def _discard(counters: dict, key: object, element: object) -> None:  # type: ignore[type-arg]
    counter = counters[key]
    counter[element] -= 1
    if not counter[element]:
        del counter[element]
        if not counter:
            del counters[key]
