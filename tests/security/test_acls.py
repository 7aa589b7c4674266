from __future__ import annotations

import pytest

from kbroker.metadata.principal import Principal
from kbroker.security.acls import StandardAuthorizer, java_address
from kbroker.security.authorizing import Operation, PatternType, Permission, ResourceType
from tests.security.acl_model import acl, by_id
from wire.stored.metadata import AccessControlEntryRecord

ALICE, BOB = Principal("User", "alice"), Principal("User", "bob")
HOST = "10.0.0.1"
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
READ, WRITE, DESCRIBE, ALL = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALL
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY


def authorizer(
    *acls: AccessControlEntryRecord, super_users: tuple[str, ...] = (), default: bool = False
) -> StandardAuthorizer:
    made = StandardAuthorizer(super_users=super_users, allows_without_acls=default)
    made.update(by_id(acls))
    return made


def may(
    judge: StandardAuthorizer, operation: Operation, name: str, *, who: Principal = ALICE, host: str = HOST
) -> bool:
    return judge.allows(who, host, operation, TOPIC, name)


def test_without_acls_only_super_users_may_do_anything() -> None:
    judge = authorizer(super_users=("User:alice",))
    assert may(judge, READ, "orders")
    assert not may(judge, READ, "orders", who=BOB)


def test_before_its_first_acls_only_super_users_may_do_anything() -> None:
    judge = StandardAuthorizer(super_users=["User:alice"], allows_without_acls=True)
    assert may(judge, READ, "orders")
    assert not may(judge, READ, "orders", who=BOB)
    assert not judge.allows_any(BOB, HOST, READ, TOPIC)
    judge.update({})
    assert may(judge, READ, "orders", who=BOB)


def test_a_deny_does_not_stop_a_super_user() -> None:
    assert may(authorizer(acl("User:*", ALL, "*", permission=DENY), super_users=("User:alice",)), READ, "orders")


@pytest.mark.parametrize("denying", [("orders", LITERAL), ("ord", PREFIXED), ("*", LITERAL)])
@pytest.mark.parametrize("allowing", [("orders", LITERAL), ("ord", PREFIXED), ("*", LITERAL)])
def test_a_deny_wins_whatever_its_pattern(denying: tuple[str, PatternType], allowing: tuple[str, PatternType]) -> None:
    allowed = acl("User:alice", READ, allowing[0], pattern=allowing[1])
    denied = acl("User:*", READ, denying[0], pattern=denying[1], permission=DENY)
    assert may(authorizer(allowed), READ, "orders")
    assert not may(authorizer(allowed, denied), READ, "orders")


def test_a_literal_name_and_a_prefix_of_another_name_do_not_apply() -> None:
    judge = authorizer(acl("User:alice", READ, "ord"), acl("User:alice", READ, "orders-", pattern=PREFIXED))
    assert not may(judge, READ, "orders")
    assert may(judge, READ, "ord")
    assert may(judge, READ, "orders-")
    assert may(judge, READ, "orders-eu")


def test_a_prefix_of_an_asterisk_is_no_wildcard() -> None:
    judge = authorizer(acl("User:alice", READ, "*", pattern=PREFIXED))
    assert not may(judge, READ, "orders")
    assert judge.allows(ALICE, HOST, READ, TOPIC, "*group")


@pytest.mark.parametrize("implying", [READ, WRITE, Operation.DELETE, Operation.ALTER])
def test_an_allow_implies_describe_and_a_deny_does_not(implying: Operation) -> None:
    assert may(authorizer(acl("User:alice", implying, "orders")), DESCRIBE, "orders")
    both = authorizer(acl("User:alice", DESCRIBE, "orders"), acl("User:alice", implying, "orders", permission=DENY))
    assert may(both, DESCRIBE, "orders")


def test_describe_does_not_imply_what_implies_it() -> None:
    judge = authorizer(acl("User:alice", DESCRIBE, "orders"), acl("User:alice", Operation.DESCRIBE_CONFIGS, "orders"))
    assert not may(judge, READ, "orders")
    assert not may(judge, Operation.ALTER_CONFIGS, "orders")


def test_altering_configs_implies_describing_them_only() -> None:
    judge = authorizer(acl("User:alice", Operation.ALTER_CONFIGS, "orders"))
    assert may(judge, Operation.DESCRIBE_CONFIGS, "orders")
    assert not may(judge, DESCRIBE, "orders")


def test_an_acl_for_one_host_applies_to_no_other() -> None:
    judge = authorizer(acl("User:alice", READ, "orders", host=HOST))
    assert may(judge, READ, "orders")
    assert not may(judge, READ, "orders", host="10.0.0.2")


def test_an_ipv6_address_is_compared_as_java_writes_it() -> None:
    assert java_address("::1") == "0:0:0:0:0:0:0:1"
    assert java_address("fe80::1%4") == "fe80:0:0:0:0:0:0:1%4"
    assert java_address("::ffff:10.0.0.1") == "10.0.0.1"
    assert may(authorizer(acl("User:alice", READ, "orders", host="0:0:0:0:0:0:0:1")), READ, "orders", host="::1")


def test_a_link_local_address_is_one_of_its_interface() -> None:
    judge = authorizer(acl("User:alice", READ, "orders", host="fe80:0:0:0:0:0:0:1%4"))
    assert may(judge, READ, "orders", host="fe80::1%4")
    assert not may(judge, READ, "orders", host="fe80::1%5")
    assert not may(judge, READ, "orders", host="fe80::1")


def test_everyone_may_use_only_resources_to_which_no_acl_applies() -> None:
    judge = authorizer(acl("User:bob", READ, "orders"), default=True)
    assert may(judge, WRITE, "payments")
    assert not may(judge, READ, "orders")


def test_a_removed_acl_has_no_effect_on_a_cached_decision() -> None:
    kept, removed = acl("User:alice", READ, "orders"), acl("User:alice", WRITE, "orders")
    judge = authorizer(kept, removed)
    assert may(judge, WRITE, "orders")
    assert judge.allows_any(ALICE, HOST, WRITE, TOPIC)
    judge.update(by_id([kept]))
    assert may(judge, READ, "orders")
    assert not may(judge, WRITE, "orders")
    assert not judge.allows_any(ALICE, HOST, WRITE, TOPIC)


def test_a_denied_prefix_leaves_no_name_of_an_allowed_longer_one() -> None:
    allowed = acl("User:alice", WRITE, "orders", pattern=PREFIXED)
    assert authorizer(allowed).allows_any(ALICE, HOST, WRITE, TOPIC)
    assert not authorizer(allowed).allows_any(ALICE, HOST, WRITE, GROUP)
    denied = acl("User:alice", WRITE, "ord", pattern=PREFIXED, permission=DENY)
    assert not authorizer(allowed, denied).allows_any(ALICE, HOST, WRITE, TOPIC)
    literal = acl("User:alice", WRITE, "orders", permission=DENY)
    assert authorizer(allowed, literal).allows_any(ALICE, HOST, WRITE, TOPIC)


def test_an_update_never_gives_a_right_that_neither_set_gives() -> None:
    before = [acl("User:alice", READ, "orders"), acl("User:alice", READ, "ord", pattern=PREFIXED, permission=DENY)]
    after = [acl("User:*", READ, "*"), acl("User:alice", ALL, "orders", permission=DENY)]
    judge = authorizer(*before, default=True)
    for _ in judge.update_in_steps(by_id(after)):
        assert not may(judge, READ, "orders")
    assert may(judge, READ, "payments")
