"""X7: what holds for every set of ACLs, on generated ones.

The first four properties are those of Kafka's StandardAuthorizerPropertyTest, with as many tries: a DENY that applies
wins over any number of ALLOWs, and an ALLOW that applies counts if no DENY does. The others compare the index of
StandardAuthorizer with a search through all ACLs (`acl_model`). compat/oracle/test_acls.py asks Kafka's own authorizer.

The choices are those of `Draws`, because hypothesis takes twenty times as long as a decision. A failure names its try.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import product
from typing import Any, Final, NamedTuple

import pytest

from kbroker.metadata.principal import Principal
from kbroker.security.acls import StandardAuthorizer
from kbroker.security.authorizing import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from kbroker.testing.draws import Draws
from tests.security.acl_model import IMPLIES, acl, by_id, is_allowed, is_allowed_on_any
from wire.stored.metadata import AccessControlEntryRecord

TRIES: Final = 5_000

ALICE: Final = Principal("User", "alice")
HERS: Final = ("User:alice", "User:*")
HERE: Final = ("10.0.0.1", "*")
TYPES: Final = (ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID, ResourceType.CLUSTER)
OPERATIONS: Final = tuple(one for one in Operation if one > Operation.ALL)
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY

Acl = AccessControlEntryRecord


def authorizer(acls: Iterable[Acl], *, default: bool = False) -> StandardAuthorizer:
    made = StandardAuthorizer(allows_without_acls=default)
    made.update(by_id(acls))
    return made


def shuffled(draws: Draws, acls: Iterable[Acl]) -> list[Acl]:
    return sorted(acls, key=lambda _: draws.word())


class Question(NamedTuple):
    """What ALICE at 10.0.0.1 asks, and the ACLs that do or do not apply to it."""

    draws: Draws
    type: ResourceType
    name: str
    operation: Operation

    def answer(self, acls: Iterable[Acl]) -> bool:
        judge = authorizer(shuffled(self.draws, acls))
        return judge.allows(ALICE, "10.0.0.1", self.operation, self.type, self.name)

    def matching(self, permission: Permission, *, pattern: PatternType) -> Acl:
        """An ACL of this permission that applies to the question."""
        draws, name, operations = self.draws, self.name, [self.operation, Operation.ALL]
        if pattern == PREFIXED:
            name = name[: draws.between(1, len(name))]
        elif draws.chance(0.3):
            name = "*"
        if permission == ALLOW:
            operations += IMPLIES.get(self.operation, ())
        return acl(
            draws.choice(HERS), draws.choice(operations), name, type=self.type, host=draws.choice(HERE),
            pattern=pattern, permission=permission,
        )  # fmt: skip

    def missing(self, permission: Permission) -> Acl:
        """An ACL of this permission that looks as if it would apply, and differs in one thing."""
        draws, name = self.draws, self.name
        fields: dict[str, Any] = {
            "principal": draws.choice(HERS), "operation": self.operation, "name": name, "type": self.type,
            "host": draws.choice(HERE), "pattern": draws.choice((LITERAL, PREFIXED)),
        }  # fmt: skip
        changes: tuple[Callable[[], dict[str, Any]], ...] = (
            lambda: {"principal": draws.choice(("User:alic", "User:alicea", "User:ALICE", "Group:alice"))},
            lambda: {"operation": draws.choice([one for one in OPERATIONS if one != self.operation])},
            lambda: {"name": name + draws.choice("a.*")},
            lambda: {"name": "~" + name},
            lambda: {"name": name[:-1] or "~", "pattern": LITERAL},
            lambda: {"name": "*", "pattern": PREFIXED},
            lambda: {"host": draws.choice(("10.0.0.2", "10.0.0.10", "10.0.0.", "0:0:0:0:0:ffff:a00:1"))},
            lambda: {"type": draws.choice([one for one in TYPES if one != self.type])},
        )
        return acl(**{**fields, **draws.choice(changes)()}, permission=permission)

    def several(self, permission: Permission, *, matching: bool) -> list[Acl]:
        if not matching:
            return [self.missing(permission) for _ in range(self.draws.below(5))]
        patterns = [self.draws.choice((LITERAL, PREFIXED)) for _ in range(self.draws.below(5))]
        return [self.matching(permission, pattern=pattern) for pattern in patterns]


def questions(key: str) -> Iterator[Question]:
    for number in range(TRIES):
        draws = Draws("x7", key, number)
        kind = draws.choice(TYPES)
        name = "".join(draws.choice("abAB01._-") for _ in range(draws.between(1, 6)))
        yield Question(draws, kind, CLUSTER_NAME if kind == ResourceType.CLUSTER else name, draws.choice(OPERATIONS))


@pytest.mark.parametrize("pattern", [LITERAL, PREFIXED])
def test_x7_a_deny_that_applies_wins_over_every_allow(pattern: PatternType) -> None:
    for number, asked in enumerate(questions(f"deny {pattern}")):
        acls = [
            asked.matching(DENY, pattern=pattern),
            *asked.several(ALLOW, matching=True),
            *asked.several(DENY, matching=False),
        ]
        assert not asked.answer(acls), (number, asked, acls)


@pytest.mark.parametrize("pattern", [LITERAL, PREFIXED])
def test_x7_an_allow_that_applies_counts_without_a_deny_that_does(pattern: PatternType) -> None:
    for number, asked in enumerate(questions(f"allow {pattern}")):
        acls = [
            asked.matching(ALLOW, pattern=pattern),
            *asked.several(ALLOW, matching=True),
            *asked.several(DENY, matching=False),
        ]
        assert asked.answer(acls), (number, asked, acls)


def test_x7_acls_that_do_not_apply_allow_nothing() -> None:
    for number, asked in enumerate(questions("default")):
        others = [
            one
            for one in (asked.missing(ALLOW) for _ in range(1 + asked.draws.below(6)))
            if one.operation not in IMPLIES.get(asked.operation, ())
        ]
        assert not asked.answer(others), (number, asked, others)


NAMES: Final = ("a", "ab", "abc", "b", "*", "*a", "ba", "$a")
ADDRESSES: Final = ("*", "10.0.0.1", "10.0.0.2")
ASKED: Final = (
    Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.DELETE, Operation.ALTER_CONFIGS,
    Operation.DESCRIBE_CONFIGS,
)  # fmt: skip
EVERY: Final = [
    acl(principal, operation, name, host=host, pattern=pattern, permission=permission)
    for principal, operation, name, host, pattern, permission in product(
        ("User:alice", "User:bob", "User:*"), (*ASKED, Operation.ALL), NAMES, ADDRESSES, (LITERAL, PREFIXED),
        (ALLOW, DENY),
    )
]  # fmt: skip
"""ACLs that often meet."""


def some(draws: Draws) -> list[Acl]:
    return [draws.choice(EVERY) for _ in range(draws.below(9))]


def test_x7_decisions_are_those_of_a_search_through_all_acls() -> None:
    for number in range(TRIES):
        draws = Draws("x7", "index", number)
        first, then, default = some(draws), some(draws), draws.chance(0.5)
        name, host, operation = draws.choice(NAMES), draws.choice(ADDRESSES), draws.choice(ASKED)
        kind = ResourceType.TOPIC
        judge = authorizer(first, default=default)
        for acls in ([*first[::2], *then], then):
            judge.update(by_id(acls))
            expected = is_allowed(acls, "User:alice", host, operation, type=kind, name=name, without_acls=default)
            assert judge.allows(ALICE, host, operation, kind, name) == expected, (number, acls)


def test_x7_any_resource_is_decided_as_by_a_search_through_all_acls() -> None:
    for number in range(TRIES):
        draws = Draws("x7", "any", number)
        acls, default, host, operation = some(draws), draws.chance(0.5), draws.choice(ADDRESSES), draws.choice(ASKED)
        kind = ResourceType.TOPIC
        expected = is_allowed(acls, "User:alice", host, operation, type=kind, name="hardcode", without_acls=default)
        expected = expected or is_allowed_on_any(acls, "User:alice", host, operation, kind)
        assert authorizer(acls, default=default).allows_any(ALICE, host, operation, kind) == expected, (number, acls)


def test_x7_an_allow_never_takes_a_right_and_a_deny_never_gives_one() -> None:
    for number in range(TRIES):
        draws = Draws("x7", "more", number)
        acls, more, name, operation = some(draws), some(draws), draws.choice(NAMES), draws.choice(ASKED)
        judge = authorizer(acls)
        rights: dict[Permission | None, bool] = {}
        for permission in (None, ALLOW, DENY):
            judge.update(by_id([*acls, *(one for one in more if one.permission_type == permission)]))
            rights[permission] = judge.allows(ALICE, "10.0.0.1", operation, ResourceType.TOPIC, name)
        assert rights[DENY] <= rights[None] <= rights[ALLOW], (number, acls, more)
