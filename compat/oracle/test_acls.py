"""The decisions of the authorizer against Kafka's StandardAuthorizer, on generated ACLs and questions."""

from __future__ import annotations

from collections import Counter
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple
from uuid import UUID

from compat.kafka.tools import run_tool
from kbroker.metadata.principal import Principal
from kbroker.security.acls import StandardAuthorizer
from kbroker.security.authorizing import Operation, ResourceType
from kbroker.testing.draws import Draws
from wire.stored.metadata import AccessControlEntryRecord

CASES: Final = 300
QUESTIONS: Final = 40
NAMES: Final = (
    "a",
    "ab",
    "abc",
    "abd",
    "b",
    "ba",
    "*",
    "*a",
    "$a",
    "$ab",
    "~z",
    "hardcode",
    "hard",
    "ä",
    "kafka-cluster",
)
WHERE_KAFKA_ERRS: Final = {"*a", "$a"}
"""Kafka does not apply the ACLs of all resources ("*") to a name that begins with an asterisk, and its search fails for
some names that sort before the asterisk. kbroker answers both as its own model does (tests/security)."""
PRINCIPALS: Final = ("User:alice", "User:bob", "User:ANONYMOUS", "Group:alice", "User:CN=a.example")
HOSTS: Final = ("10.0.0.1", "10.0.0.2", "::1", "fe80::1:2", "::ffff:10.0.0.1")
ACL_HOSTS: Final = ("*", "*", "10.0.0.1", "10.0.0.2", "0:0:0:0:0:0:0:1", "::1", "fe80:0:0:0:0:0:1:2")
OPERATIONS: Final = tuple(operation for operation in Operation if operation > Operation.ALL)
TYPES: Final = (ResourceType.TOPIC, ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER)
_FAILS: Final = "2"


class Question(NamedTuple):
    """Whether a client may do something with a resource, or with any resource of the type if the name is empty."""

    principal: str
    host: str
    operation: Operation
    resource_type: ResourceType
    name: str


def an_acl(draws: Draws, number: int) -> AccessControlEntryRecord:
    return AccessControlEntryRecord(
        id=UUID(int=number),
        resource_type=draws.choice(TYPES),
        resource_name=draws.choice(NAMES),
        pattern_type=draws.choice((3, 3, 4)),
        principal=draws.choice((*PRINCIPALS, "User:*", "User:*")),
        host=draws.choice(ACL_HOSTS),
        operation=draws.choice((Operation.ALL, Operation.READ, Operation.WRITE, *OPERATIONS)),
        permission_type=draws.choice((2, 3, 3, 3)),
    )


def a_question(draws: Draws) -> Question:
    operation = draws.choice((Operation.READ, Operation.WRITE, Operation.DESCRIBE, *OPERATIONS))
    name = "" if draws.chance(0.3) else draws.choice(NAMES)
    return Question(draws.choice(PRINCIPALS), draws.choice(HOSTS), operation, draws.choice(TYPES), name)


def as_line(super_users: str, default: bool, acls: list[AccessControlEntryRecord], asked: list[Question]) -> str:
    entries = (
        f"{int(one.resource_type)},{one.resource_name},{one.pattern_type},{one.principal},{one.host},{int(one.operation)},"
        f"{one.permission_type}"
        for one in acls
    )
    questions = (
        f"{one.principal},{one.host},{int(one.operation)},{int(one.resource_type)},{one.name}" for one in asked
    )
    return "|".join((super_users, str(default).lower(), ";".join(entries), ";".join(questions)))


def answers_of(judge: StandardAuthorizer, asked: list[Question]) -> str:
    found = ""
    for one in asked:
        principal = Principal(*one.principal.split(":"))
        if one.name:
            is_allowed = judge.allows(principal, one.host, one.operation, one.resource_type, one.name)
        else:
            is_allowed = judge.allows_any(principal, one.host, one.operation, one.resource_type)
        found += str(int(is_allowed))
    return found


def test_x7_decisions_are_those_of_kafkas_authorizer() -> None:
    draws, numbers = Draws("acls", 1), count(1)
    cases = []
    for _ in range(CASES):
        super_users = "User:bob;Group:alice" if draws.chance(0.2) else ""
        acls = [an_acl(draws, next(numbers)) for _ in range(draws.below(25))]
        asked = [a_question(draws) for _ in range(QUESTIONS)]
        cases.append((super_users, draws.chance(0.3), acls, asked))
    lines = "\n".join(as_line(*case) for case in cases) + "\n"
    done = run_tool(str(Path(__file__).with_name("Acls.java")), input=lines, timeout_s=300)
    assert done.returncode == 0, done.stderr
    expected = [line for line in done.stdout.splitlines() if set(line) <= set("012")]
    assert len(expected) == CASES, done.stdout[:1000]
    outcomes: Counter[str] = Counter()
    judge: StandardAuthorizer | None = None
    for (super_users, default, acls, asked), theirs in zip(cases, expected, strict=True):
        if judge is None or super_users or default or judge.super_users or judge.allows_without_acls:
            judge = StandardAuthorizer(super_users=filter(None, super_users.split(";")), allows_without_acls=default)
        judge.update({one.id: one for one in acls})  # often over the ACLs of the case before
        ours = answers_of(judge, asked)
        for question, our, their in zip(asked, ours, theirs, strict=True):
            outcomes[their] += 1
            assert our == their or question.name in WHERE_KAFKA_ERRS, (question, acls, their)
            assert their != _FAILS or question.name in WHERE_KAFKA_ERRS, (question, acls)
    assert outcomes["0"] > 1_000 < outcomes["1"]
