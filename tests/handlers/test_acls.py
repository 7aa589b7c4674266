"""CreateAcls, DeleteAcls and DescribeAcls of a broker with an authorizer, and what they change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from kbroker.config.authorizer import STANDARD_AUTHORIZER
from kbroker.metadata.principal import ANONYMOUS, Principal
from kbroker.security.audit import AuditedAuthorizer
from kbroker.security.authorizing import Operation, PatternType, Permission, ResourceType
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from wire.errors import ErrorCode
from wire.messages.create_acls import AclCreation, CreateAclsRequest
from wire.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from wire.messages.describe_acls import DescribeAclsRequest

SETTINGS = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
ALICE = Principal("User", "alice")
NO_COLON = "no colon is present separating the principal type from the principal name"
READ, TOPIC = Operation.READ, ResourceType.TOPIC
ALL_ACLS: dict[str, Any] = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


def entry(**fields: Any) -> AclCreation:
    given: dict[str, Any] = {
        "resource_type": TOPIC,
        "resource_name": "orders",
        "resource_pattern_type": PatternType.LITERAL,
        "principal": "User:alice",
        "host": "*",
        "operation": READ,
        "permission_type": Permission.ALLOW,
    }
    return AclCreation(**{**given, **fields})


async def create(client: Client, *entries: AclCreation) -> list[tuple[int, str | None]]:
    answer = await client.ask(CreateAclsRequest(creations=list(entries)))
    return [(result.error_code, result.error_message) for result in answer.results]


async def describe(client: Client, **fields: Any) -> list[tuple[int, str, str, int]]:
    answer = await client.ask(DescribeAclsRequest(**{**ALL_ACLS, **fields}))
    assert (answer.error_code, answer.error_message) == (0, None)
    return [
        (resource.pattern_type, resource.resource_name, acl.principal, acl.operation)
        for resource in answer.resources
        for acl in resource.acls
    ]


@pytest.fixture(autouse=True)
def _info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "kbroker")


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    return [vars(record)["kbroker_fields"] for record in caplog.records if record.getMessage() == event]


def denials(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return lines(caplog, "denied")


@pytest.fixture
async def broker() -> AsyncIterator[MemoryBroker]:
    async with memory_broker(settings=SETTINGS) as running:
        yield running


@pytest.fixture
async def client(broker: MemoryBroker) -> Client:
    return await broker.connect()


def may_read(broker: MemoryBroker, name: str) -> bool:
    node = broker.node.broker
    assert node is not None
    assert node.authorizer is not None
    return node.authorizer.allows(ALICE, "10.0.0.1", READ, TOPIC, name)


async def test_an_acl_has_effect_once_it_is_created_and_until_it_is_deleted(
    broker: MemoryBroker, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    assert not may_read(broker, "orders")
    assert await create(client, entry(), entry(), entry(resource_name="payments")) == [(0, None)] * 3
    assert await create(client, entry()) == [(0, None)]
    assert may_read(broker, "orders")
    assert await describe(client) == [(3, "orders", "User:alice", 3), (3, "payments", "User:alice", 3)]
    deleted = await client.ask(
        DeleteAclsRequest(filters=[DeleteAclsFilter(**{**ALL_ACLS, "resource_name_filter": "orders"})])
    )
    (result,) = deleted.filter_results
    assert (result.error_code, [acl.resource_name for acl in result.matching_acls]) == (0, ["orders"])
    assert not may_read(broker, "orders")
    assert may_read(broker, "payments")
    created, gone = ({one["resource"] for one in lines(caplog, f"ACL {event}")} for event in ("created", "deleted"))
    assert (created, gone) == ({"TOPIC:orders", "TOPIC:payments"}, {"TOPIC:orders"})
    assert {one["principal"] for one in lines(caplog, "ACL deleted")} == {ANONYMOUS}


async def test_acls_survive_a_restart() -> None:
    async with memory_broker(settings=SETTINGS) as broker:
        await create(await broker.connect(), entry())
    async with memory_broker(broker.disk, settings=SETTINGS) as broker:
        assert may_read(broker, "orders")
        assert await describe(await broker.connect()) == [(3, "orders", "User:alice", 3)]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"resource_type": 4}, "The only valid name for the CLUSTER resource is kafka-cluster"),
        ({"resource_name": ""}, "Invalid empty resource name"),
        ({"resource_type": 1}, "Invalid resourceType ANY"),
        ({"resource_type": 99}, "Invalid resourceType UNKNOWN"),
        ({"resource_pattern_type": 2}, "Invalid patternType MATCH"),
        ({"operation": 1}, "Invalid operation ANY"),
        ({"permission_type": 1}, "Invalid permissionType ANY"),
        (
            {"principal": "alice"},
            f"Could not parse principal from `alice` ({NO_COLON})",
        ),
    ],
)
async def test_an_invalid_acl_fails_apart_from_the_others(client: Client, fields: dict[str, Any], message: str) -> None:
    assert await create(client, entry(**fields), entry()) == [(ErrorCode.INVALID_REQUEST, message), (0, None)]


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("pattern_type_filter", "Unknown patternFilter."),
        ("operation", "Unknown entryFilter."),
    ],
)
async def test_a_filter_of_an_unknown_number_deletes_nothing(client: Client, field: str, message: str) -> None:
    await create(client, entry())
    answer = await client.ask(DeleteAclsRequest(filters=[DeleteAclsFilter(**{**ALL_ACLS, field: 99})]))
    (result,) = answer.filter_results
    assert (result.error_code, result.error_message) == (ErrorCode.INVALID_REQUEST, message)
    assert await describe(client, **{field: 99}) == []
    assert len(await describe(client)) == 1


async def test_a_filter_of_type_match_finds_what_applies_to_a_resource(client: Client) -> None:
    names = [("orders", 3), ("ord", 4), ("ord", 3), ("*", 3), ("payments", 3)]
    await create(client, *(entry(resource_name=name, resource_pattern_type=kind) for name, kind in names))
    applying = await describe(client, resource_name_filter="orders", pattern_type_filter=2)
    assert {(name, kind) for kind, name, _, _ in applying} == {("orders", 3), ("ord", 4), ("*", 3)}


async def test_only_clients_with_rights_on_the_cluster_see_or_change_acls(caplog: pytest.LogCaptureFixture) -> None:
    async with memory_broker(settings={**SETTINGS, "super.users": "User:admin"}) as broker:
        client = await broker.connect()
        answer = await client.ask(DescribeAclsRequest(**ALL_ACLS))
        assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert [code for code, _ in await create(client, entry())] == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
        deleted = await client.ask(DeleteAclsRequest(filters=[DeleteAclsFilter(**ALL_ACLS)]))
        assert [one.error_code for one in deleted.filter_results] == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
        assert broker.node.broker is not None
        authorizer = broker.node.broker.authorizer
        assert isinstance(authorizer, AuditedAuthorizer)
        assert authorizer.denials.counts[("CreateAcls", "CLUSTER")] == 1
    lines = denials(caplog)
    assert [line["api"] for line in lines] == ["DescribeAcls", "CreateAcls", "DeleteAcls"]
    assert lines[1] == {
        "principal": ANONYMOUS,
        "host": lines[0]["host"],
        "operation": "ALTER",
        "resource": "CLUSTER:kafka-cluster",
        "api": "CreateAcls",
        "left_out": 0,
    }


async def test_the_audit_log_has_a_bounded_number_of_lines_for_each_principal(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with memory_broker(settings={**SETTINGS, "super.users": "User:admin"}) as broker:
        client = await broker.connect()
        for _ in range(50):
            await create(client, entry())
    assert len(denials(caplog)) == 10
    assert lines(caplog, "further denials are not logged now") == [{"principal": ANONYMOUS, "seconds": 10}]


async def test_a_broker_that_nobody_may_use_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    async with memory_broker(settings={"authorizer.class.name": STANDARD_AUTHORIZER}):
        pass
    assert "super.users is empty" in caplog.text
