"""`kbroker acl` against a broker with an authorizer: what the flags add, list and remove."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kbroker.client.blocking import Connection
from kbroker.config.authorizer import STANDARD_AUTHORIZER
from kbroker.security.authorizing import Operation, Permission, ResourceType
from tests.broker_process import BrokerProcess
from tests.cli.conftest import Done, Run
from wire.messages.create_acls import AclCreation, CreateAclsRequest

Acl = Callable[..., Done]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker with an authorizer, whose clients are super users."""
    settings = (f"authorizer.class.name={STANDARD_AUTHORIZER}", "super.users=User:ANONYMOUS")
    flags = [word for each in settings for word in ("--override", each)]
    with BrokerProcess(tmp_path_factory.mktemp("data"), "--profile", "test", *flags) as started:
        yield f"{started.host}:{started.port}"


@pytest.fixture
def acl(run: Run, guarded: str) -> Iterator[Acl]:
    yield lambda *words: run("acl", "-b", guarded, *words)
    run(
        "acl",
        "-b",
        guarded,
        "--remove",
        "--yes",
        "--cluster",
        "--topic",
        "*",
        "--group",
        "*",
        "--transactional-id",
        "*",
    )
    run("acl", "-b", guarded, "--remove", "--yes", "--topic", "orders", "--group", "readers", "--transactional-id", "t",
        "--resource-pattern-type", "any")  # fmt: skip


def listed(acl: Acl, *words: str) -> list[tuple[Any, ...]]:
    done = acl("--list", "--format", "json", *words)
    assert done.code == 0, done.err
    return [
        (each["resource_type"], each["resource_name"], each["principal"], each["operation"], each["permission_type"])
        for each in json.loads(done.out)
    ]


def test_an_added_acl_is_listed_until_it_is_removed(acl: Acl, run: Run, guarded: str) -> None:
    entry = ("--allow-principal", "User:alice", "--operation", "Read", "--topic", "orders")
    done = acl("--add", "--force", *entry)  # as with kafka-acls, every action takes --force
    assert done.code == 0, done.err
    assert acl("--list", "--force").code == 0
    resource = "`ResourcePattern(resourceType=TOPIC, name=orders, patternType=LITERAL)`"
    line = "\t(principal=User:alice, host=*, operation=READ, permissionType=ALLOW)"
    assert done.lines == [f"Adding ACLs for resource {resource}: ", line, ""]
    assert run("acl", "list", "orders", "-b", guarded).lines == [f"Current ACLs for resource {resource}: ", line, ""]
    assert listed(acl, "--principal", "User:bob") == []
    assert listed(acl, "--topic", "payments") == []
    removed = acl("--remove", *entry)
    assert (removed.code, removed.lines[1]) == (0, line), removed.err
    assert listed(acl) == []


def test_a_producer_gets_what_it_needs(acl: Acl) -> None:
    who = ("--allow-principal", "User:alice", "--allow-host", "10.0.0.1")
    done = acl("--add", "--producer", "--idempotent", "--topic", "orders", "--transactional-id", "t", *who)
    assert done.code == 0, done.err
    assert {(kind, operation) for kind, _, _, operation, _ in listed(acl)} == {
        ("TOPIC", "WRITE"), ("TOPIC", "DESCRIBE"), ("TOPIC", "CREATE"), ("TRANSACTIONAL_ID", "WRITE"),
        ("TRANSACTIONAL_ID", "DESCRIBE"), ("CLUSTER", "IDEMPOTENT_WRITE"),
    }  # fmt: skip


def test_a_consumer_gets_what_it_needs(acl: Acl) -> None:
    done = acl("--add", "--consumer", "--topic", "orders", "--group", "readers", "--allow-principal", "User:alice")
    assert done.code == 0, done.err
    found = {(kind, name, operation) for kind, name, _, operation, _ in listed(acl)}
    assert found == {("TOPIC", "orders", "READ"), ("TOPIC", "orders", "DESCRIBE"), ("GROUP", "readers", "READ")}


def test_removing_several_acls_needs_an_agreement(acl: Acl) -> None:
    acl("--add", "--allow-principal", "User:alice", "--deny-principal", "User:bob", "--topic", "orders")
    done = acl("--remove", "--topic", "orders")
    assert done.code == 1
    assert "Remove these 2 ACLs?" in done.err
    assert listed(acl) == [
        ("TOPIC", "orders", "User:alice", "ALL", "ALLOW"),
        ("TOPIC", "orders", "User:bob", "ALL", "DENY"),
    ]
    assert acl("--remove", "--topic", "orders", "--yes").code == 0
    assert listed(acl) == []


def test_the_acls_that_apply_to_a_topic_are_found(acl: Acl) -> None:
    who = ("--allow-principal", "User:alice")
    acl("--add", *who, "--topic", "ord", "--resource-pattern-type", "prefixed")
    acl("--add", *who, "--topic", "*")
    names = [name for _, name, *_ in listed(acl, "--topic", "orders", "--resource-pattern-type", "match")]
    assert names == ["*", "ord"]
    assert listed(acl, "--topic", "orders") == []
    acl("--remove", "--topic", "ord", "--resource-pattern-type", "prefixed")


def test_errors_of_the_broker_are_printed(acl: Acl) -> None:
    done = acl("--add", "--allow-principal", "User:alice", "--topic", "orders", "--operation", "Reed")
    assert (done.code, done.err) == (1, "kbroker acl: there is no operation 'Reed'; did you mean read?\n")


def test_an_acl_that_would_have_no_effect_is_refused(acl: Acl) -> None:
    who = ("--add", "--deny-principal", "User:alice", "--topic", "orders")
    done = acl(*who, "--deny-host", "laptop.example")
    assert (done.code, done.err) == (
        1, "kbroker acl: 'laptop.example' is no IP address, and brokers look up no names\n"
    )  # fmt: skip
    done = acl(*who, "--deny-host", "fe80::1%eth0")
    assert (done.code, done.err) == (
        1, "kbroker acl: 'fe80::1%eth0': brokers know the number of an interface and not its name 'eth0'\n"
    )  # fmt: skip
    done = acl(*who, "--operation", "ClusterAction")
    assert done.code == 1
    assert "there is no CLUSTER_ACTION on a resource of type TOPIC; it has ALL, READ" in done.err
    assert listed(acl) == []


def test_an_ipv6_address_is_written_as_brokers_compare_it(acl: Acl) -> None:
    who = ("--deny-principal", "User:alice", "--topic", "orders", "--deny-host", "2001:DB8::1")
    acl("--add", *who)
    assert "host=2001:db8:0:0:0:0:0:1," in acl("--list").out
    acl("--remove", *who)
    assert listed(acl) == []
    acl("--add", *who[:-1], "fe80::1%4")
    assert "host=fe80:0:0:0:0:0:0:1%4," in acl("--list").out


def test_an_acl_is_removed_although_its_address_was_stored_in_another_spelling(acl: Acl, guarded: str) -> None:
    host, _, port = guarded.rpartition(":")
    stored = AclCreation(
        resource_type=ResourceType.TOPIC,
        resource_name="orders",
        principal="User:alice",
        host="2001:DB8::1",
        operation=Operation.READ,
        permission_type=Permission.DENY,
    )
    with Connection(host, int(port), client_id="test") as client:
        answer = client.ask(CreateAclsRequest(creations=[stored]))
    assert [result.error_code for result in answer.results] == [0]
    done = acl(
        "--remove", "--deny-principal", "User:alice", "--operation", "Read", "--topic", "orders",
        "--deny-host", "2001:DB8::1",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert listed(acl) == []


def test_a_broker_without_an_authorizer_says_so(run: Run, broker: str) -> None:
    done = run("acl", "-b", broker, "--list")
    assert (done.code, done.err) == (1, "kbroker acl: No Authorizer is configured on the broker\n")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--add", "--topic", "x"], "--add requires --allow-principal or --deny-principal"),
        (["--add", "--allow-principal", "User:a"], "--add requires a resource"),
        (["--remove"], "--remove requires a resource"),
        (["--add", "--allow-principal", "a", "--topic", "x"], "'a' has no type; write User:a"),
        (["--list", "--operation", "Read"], "--operation cannot be used with --list"),
        (["--remove", "--topic", "x", "--operation", "Read"], "--operation requires --allow-principal"),
        (["--add", "--topic", "x", "--producer", "--deny-principal", "User:a"], "cannot be used with --operation"),
        (["--add", "--topic", "x", "--consumer", "--allow-principal", "User:a"], "--consumer requires --topic and"),
        (["--add", "--topic", "x", "--allow-principal", "User:a", "--deny-host", "h"], "--deny-host requires"),
        (["--add", "--topic", "x", "--allow-principal", "User:a", "--resource-pattern-type", "any"], "with --add"),
    ],
)
def test_wrong_usage_exits_with_2_and_a_reason(run: Run, words: list[str], reason: str) -> None:
    done = run("acl", *words)
    assert (done.code, done.out) == (2, "")
    assert reason in done.err
