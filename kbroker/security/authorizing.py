"""The question to an authorizer: may a principal perform an operation on a resource?

Source  AclOperation, ResourceType and Authorizer of Apache Kafka 4.3.1
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final, Protocol

from kbroker.metadata.principal import Principal


class Operation(IntEnum):
    """An operation on a resource, with its number in the protocol and in the metadata log."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class ResourceType(IntEnum):
    """A type of resource, with its number in the protocol and in the metadata log."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How the name of an ACL selects resources, with its number in the protocol and in the metadata log."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Permission(IntEnum):
    """Whether an ACL allows or denies the operation, with its number in the protocol and in the metadata log."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


CLUSTER_NAME: Final = "kafka-cluster"
"""The name of the only resource of type CLUSTER."""


OPERATIONS: Final[Mapping[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (
        Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ, Operation.DELETE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}  # fmt: skip
"""The operations that can be performed on a resource of each type (AclEntry.supportedOperations)."""


def bit_field(operations: Iterable[Operation]) -> int:
    """Operations in one number, as in authorized_operations: bit n stands for the operation with number n."""
    return sum(1 << operation for operation in operations)


ALL_OPERATIONS: Final = {kind: bit_field(operations) for kind, operations in OPERATIONS.items()}
"""All operations on a resource of each type, as a bit field."""


class Authorizer(Protocol):
    """Decides each operation of a client apart. Implementations are synchronous and fast: handlers ask on the loop."""

    def allows(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        """Whether a client may perform an operation on a resource. host is the client's IP address."""
        ...

    def allows_any(self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether a client may perform an operation on at least one resource of a type."""
        ...

    def denied(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType, name: str, *, api: str
    ) -> None:
        """Take note that a request for this operation was refused; api is the name of its API."""
        ...
