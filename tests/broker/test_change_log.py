"""What the log says about things that clients create, change and delete."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from kbroker.broker.change_log import HIDDEN, LINES, SHOWN_OFFSETS, ChangeLog, changes_of
from kbroker.handlers.offset_commit import PARTITIONS_TOGETHER, REMEMBERED_GROUPS
from kbroker.metadata.image import QuotaEntity
from kbroker.metadata.principal import ANONYMOUS, Principal
from kbroker.runtime.turns import Turns
from kbroker.testing.memory_node import Client, MemoryBroker
from tests.controller.test_client_quotas import entry
from tests.handlers.asking import BROKER, TOPIC, alter_configs, create_topic, delete_topic
from tests.handlers.conftest import broker as broker  # noqa: PLC0414  (a fixture)
from tests.handlers.conftest import client as client  # noqa: PLC0414
from tests.handlers.groups import commit, find, form
from wire.messages.alter_client_quotas import AlterClientQuotasRequest
from wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from wire.messages.create_acls import AclCreation, AclCreationResult, CreateAclsRequest, CreateAclsResponse
from wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from wire.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)
from wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)
from wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic

NAMES = ("principal", "client_id", "peer")


@pytest.fixture(autouse=True)
def _info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "kbroker")


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    """The fields of the lines with this event, without who asked."""
    found = [vars(record)["kbroker_fields"] for record in caplog.records if record.getMessage() == event]
    assert all(line["client_id"] == "test" and line["peer"] for line in found)
    return [{name: value for name, value in line.items() if name not in NAMES} for line in found]


async def test_topics_are_logged_with_who_asked(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    await create_topic(client, "orders", partitions=2)
    await delete_topic(client, "orders")
    assert lines(caplog, "topic created") == [{"topic": "orders", "partitions": 2, "replication_factor": 1}]
    assert lines(caplog, "topic deleted") == [{"topic": "orders"}]


async def test_nothing_is_logged_that_did_not_happen(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    wanted = CreatableTopic(name="orders", num_partitions=1, replication_factor=1, assignments=[], configs=[])
    await client.ask(CreateTopicsRequest(topics=[wanted], timeout_ms=1000, validate_only=True))
    await create_topic(client, "orders")
    await client.ask(CreateTopicsRequest(topics=[wanted], timeout_ms=1000))  # exists
    assert len(lines(caplog, "topic created")) == 1


async def test_each_changed_setting_has_a_line(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    await create_topic(client, "orders")
    await alter_configs(client, TOPIC, "orders", {"retention.ms": 1000, "segment.ms": None})
    assert lines(caplog, "setting changed") == [
        {"topic": "orders", "name": "retention.ms", "value": "1000"},
        {"topic": "orders", "name": "segment.ms", "value": "(default)"},
    ]


async def test_each_changed_quota_has_a_line(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    pair: QuotaEntity = (("user", "alice"), ("client-id", None))
    entries = [
        entry(pair, ("producer_byte_rate", 5), ("request_percentage", None)),
        entry((("user", ""),), ("producer_byte_rate", 1)),
    ]
    await client.ask(AlterClientQuotasRequest(entries=entries, validate_only=False))
    name = "client-id=(default) user=alice"
    assert lines(caplog, "quota changed") == [
        {"entity": name, "name": "producer_byte_rate", "value": 5.0},
        {"entity": name, "name": "request_percentage", "value": None},
    ]


async def test_secret_and_unknown_settings_of_brokers_are_hidden(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    await alter_configs(client, BROKER, "", {"my.own.password": "hunter2", "log.retention.ms": 1000})
    shown = {line["name"]: line["value"] for line in lines(caplog, "setting changed")}
    assert shown.get("my.own.password", HIDDEN) == HIDDEN
    assert shown.get("log.retention.ms") in ("1000", None)
    assert "hunter2" not in caplog.text


async def test_a_topic_that_a_client_creates_by_naming_it_is_logged(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    asked = MetadataRequest(topics=[MetadataRequestTopic(name="named")], allow_auto_topic_creation=True)
    await client.ask(asked)
    await client.ask(asked)
    assert [line["topic"] for line in lines(caplog, "topic created")] == ["named"]


async def test_a_new_group_is_logged_once(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    request = JoinGroupRequest(
        group_id="billing",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    await find(client, "billing")
    for _ in range(2):
        await client.ask(request, version=2)
    assert lines(caplog, "group created") == [{"group": "billing"}]


async def test_a_commit_without_a_member_is_logged_with_its_group(
    broker: MemoryBroker, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    await find(client, "billing")
    topic_id = await create_topic(client, "t", partitions=2)
    refused = {("t", 9): 1}
    await commit(client, refused, group_id="billing")
    assert lines(caplog, "offsets set") == lines(caplog, "group created") == []
    await commit(client, {(topic_id, 0): 5, (topic_id, 1): 7}, group_id="billing", version=10)
    first = {"group": "billing", "topic": "t", "offsets": "0:5,1:7"}
    assert lines(caplog, "group created") == [{"group": "billing"}]
    assert lines(caplog, "offsets set") == [first]
    for number in range(10):
        await commit(client, {("t", 0): number}, group_id="billing")
        await trio.sleep(30)
    assert lines(caplog, "offsets set") == [first], "a consumer without a group commits all the time"
    second = {"group": "billing", "topic": "t", "offsets": "0:3"}
    tool = await broker.connect()
    await commit(tool, {("t", 0): 3} | refused, group_id="billing")
    assert lines(caplog, "offsets set") == [first, second], "a tool connects for each reset"
    await trio.sleep(61)
    await commit(client, {("t", 0): 3}, group_id="billing")
    assert lines(caplog, "offsets set") == [first, second, second]
    assert len(lines(caplog, "group created")) == 1


async def test_a_large_commit_is_logged_in_portions(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    await find(client, "billing")
    await create_topic(client, "t", partitions=PARTITIONS_TOGETHER + 1)
    await commit(client, {("t", index): index for index in range(PARTITIONS_TOGETHER + 1)}, group_id="billing")
    whole, rest = lines(caplog, "offsets set")
    assert whole["offsets"] == ",".join(f"{index}:{index}" for index in range(SHOWN_OFFSETS))
    assert rest["offsets"] == f"{PARTITIONS_TOGETHER}:{PARTITIONS_TOGETHER}"
    assert lines(caplog, "group created") == [{"group": "billing"}]


async def test_commits_of_members_are_not_logged(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    await create_topic(client, "t")
    await find(client)
    joined = await form(client)
    assert set((await commit(client, {("t", 0): 5}, joined=joined)).values()) == {0}
    assert lines(caplog, "offsets set") == []


async def test_a_connection_remembers_a_bounded_number_of_groups(
    client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    await create_topic(client, "t")
    await find(client)
    for _ in range(2):
        for number in range(REMEMBERED_GROUPS + 1):
            await commit(client, {("t", 0): 1}, group_id=f"g{number}")
    assert len(lines(caplog, "offsets set")) == 2 * (REMEMBERED_GROUPS + 1)
    await commit(client, {("t", 0): 1}, group_id=f"g{number}")
    assert len(lines(caplog, "offsets set")) == 2 * (REMEMBERED_GROUPS + 1)


def test_a_flood_of_changes_cannot_fill_the_log_or_hide_other_users(caplog: pytest.LogCaptureFixture) -> None:
    now_ms = 100_000
    log = ChangeLog(lambda: now_ms, Turns(lambda: 0))
    for number in range(LINES + 5):
        log.note("topic created", principal=ANONYMOUS, client_id="test", peer="::1", topic=str(number))
    assert len(lines(caplog, "topic created")) == LINES
    assert lines(caplog, "further changes are not logged now") == [{"seconds": 10}]
    log.note("ACL created", principal=Principal("User", "al"), client_id="test", peer="::1")
    assert len(lines(caplog, "ACL created")) == 1
    now_ms += 60_000
    log.note("topic created", principal=ANONYMOUS, client_id="test", peer="::1", topic="later")
    assert len(lines(caplog, "topic created")) == LINES + 1
    (left_out,) = (record for record in caplog.records if "too many" in record.getMessage())
    assert vars(left_out)["kbroker_fields"] == {"changes": 5, "principal": ANONYMOUS}


def test_each_acl_has_a_line() -> None:
    acl: dict[str, Any] = {
        "resource_type": 2, "resource_name": "orders", "principal": "User:al", "host": "*", "operation": 3,
        "permission_type": 3,
    }  # fmt: skip
    shown = {
        "permission": "ALLOW", "whom": "User:al", "from_host": "*", "operation": "READ", "resource": "TOPIC:orders",
        "pattern": "PREFIXED",
    }  # fmt: skip
    made = CreateAclsRequest(creations=[AclCreation(**acl, resource_pattern_type=4)] * 2)
    refused = AclCreationResult(error_code=42, error_message="no")
    answer = CreateAclsResponse(results=[AclCreationResult(error_message=None), refused])
    assert list(changes_of(made, answer)) == [("ACL created", shown)]
    matching = [DeleteAclsMatchingAcl(**acl, pattern_type=4, error_code=code, error_message=None) for code in (0, 42)]
    deleted = DeleteAclsResponse(filter_results=[DeleteAclsFilterResult(error_message=None, matching_acls=matching)])
    assert list(changes_of(DeleteAclsRequest(filters=[]), deleted)) == [("ACL deleted", shown)]


def test_each_credential_has_a_line_without_the_password() -> None:
    request = AlterUserScramCredentialsRequest(
        deletions=[ScramCredentialDeletion(name="al", mechanism=1), ScramCredentialDeletion(name="bo", mechanism=1)],
        upsertions=[
            ScramCredentialUpsertion(name="cy", mechanism=2, iterations=4096, salt=b"s", salted_password=b"sesame")
        ],
    )
    results = [
        AlterUserScramCredentialsResult(user=user, error_code=code, error_message=None)
        for user, code in (("al", 0), ("bo", 91), ("cy", 0))
    ]
    assert list(changes_of(request, AlterUserScramCredentialsResponse(results=results))) == [
        ("credential deleted", {"user": "al", "mechanism": "SCRAM-SHA-256"}),
        ("credential set", {"user": "cy", "mechanism": "SCRAM-SHA-512"}),
    ]


@pytest.mark.parametrize(("election_type", "election"), [(0, "preferred"), (1, "unclean")])
def test_each_election_that_a_client_asks_for_has_a_line(election_type: int, election: str) -> None:
    """An unclean one may lose records."""
    request = ElectLeadersRequest(election_type=election_type, topic_partitions=None)
    parts = [
        PartitionResult(partition_id=number, error_code=code, error_message=None) for number, code in ((0, 0), (1, 84))
    ]
    answer = ElectLeadersResponse(replica_election_results=[ReplicaElectionResult(topic="a", partition_result=parts)])
    assert list(changes_of(request, answer)) == [
        ("leader elected", {"topic": "a", "partition": 0, "election": election})
    ]


async def test_the_broker_itself_asks_for_internal_topics(
    broker: MemoryBroker, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    assert broker.node.broker is not None
    await broker.node.broker.auto_creator.create(["__consumer_offsets"])
    (line,) = (vars(each)["kbroker_fields"] for each in caplog.records if each.getMessage() == "topic created")
    assert (line["topic"], line["client_id"]) == ("__consumer_offsets", "")
