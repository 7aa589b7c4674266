"""Every API asks for the rights that Kafka asks for, for each resource apart, and refuses with Kafka's codes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from kbroker import quorum
from kbroker.handlers import DENIED, discover
from kbroker.metadata.image import BROKER_RESOURCE
from kbroker.security.acls import StandardAuthorizer
from kbroker.security.authorizing import CLUSTER_NAME, Operation, Permission, ResourceType
from kbroker.testing.memory_node import Client, MemoryBroker, memory_broker
from tests.handlers.asking import (
    alter_configs,
    batch,
    create_topic,
    fetching,
    parts,
    produce,
    producing,
    values,
    wanted,
)
from tests.handlers.authorizations import (
    BROKER,
    CONTROLLER,
    DENIALS,
    GROUP,
    NO_RIGHTS,
    ORDERS,
    TXN,
    Right,
    Row,
    changing,
    codes_in,
)
from tests.handlers.groups import joining
from tests.security.acl_model import acl, by_id
from wire.errors import ErrorCode
from wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from wire.messages.describe_cluster import DescribeClusterRequest
from wire.messages.find_coordinator import FindCoordinatorRequest
from wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from wire.types import ZERO_UUID

ANYBODY = "User:*"
TOPIC_DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class Rights(StandardAuthorizer):
    """Decides by ACLs that a test gives it; notes the denials that the broker would log."""

    def __init__(self) -> None:
        super().__init__()
        self.denials: list[tuple[str, Operation, ResourceType, str]] = []
        self.grant_all()

    def grant(self, *rights: Right) -> None:
        """Replace all rights of all clients."""
        self.update(by_id([acl(ANYBODY, operation, name, type=kind) for operation, kind, name in rights]))
        self.denials.clear()

    def grant_all(self) -> None:
        """Allow everything."""
        names = {kind: "*" for kind in ResourceType if kind > ResourceType.ANY} | {ResourceType.CLUSTER: CLUSTER_NAME}
        self.grant(*((Operation.ALL, kind, name) for kind, name in names.items()))

    def denied(
        self, _principal: object, _host: str, operation: Operation, resource_type: ResourceType, name: str, *, api: str
    ) -> None:
        self.denials.append((api, operation, resource_type, name))


@pytest.fixture
def rights(broker: MemoryBroker) -> Rights:
    """An authorizer of the broker, which allows everything at first."""
    made = Rights()
    broker.node.broker.authorizer = made
    return made


@pytest.fixture
async def user(broker: MemoryBroker, rights: Rights) -> Client:
    """A client that connects after the authorizer is set."""
    assert broker.node.broker.authorizer is rights
    return await broker.connect()


def apis(table: Iterable[Row]) -> set[str]:
    return {row.api for row in table}


def test_every_served_api_is_in_the_table_or_needs_no_right() -> None:
    served = {handler.name for handler in discover().values()}
    assert served - apis(BROKER) - set(NO_RIGHTS) == set()
    assert apis(BROKER) - served == set()
    of_controllers = {handler.name for handler in quorum.discover().values()}
    assert of_controllers - apis(CONTROLLER) - {"ApiVersions", "SaslHandshake", "SaslAuthenticate"} == set()


async def checked(row: Row, client: Client, rights: Rights, orders_id: UUID) -> list[str]:
    """What is wrong with one row: with all rights nothing may be denied; without one of them, that must be denied."""
    faults: list[str] = []

    async def ask(given: Iterable[Right], expected: ErrorCode | None, why: str) -> None:
        rights.grant(*given)
        answer = await client.ask(row.request(orders_id), version=row.version)
        found = DENIALS.intersection(codes_in(answer))
        if found != ({expected} if expected else set()):
            faults.append(f"{row}: {why}: {sorted(found)} instead of {expected!r}")
        if bool(rights.denials) != bool(expected) and row.code is not None:
            faults.append(f"{row}: {why}: {rights.denials} are logged")

    needs = row.rights()
    others = [[each[0] for at, each in enumerate(needs) if at != number] for number in range(len(needs))]
    for number, alternatives in enumerate(needs):
        await ask(others[number], row.code_without(number), f"without {alternatives}")
    for number, alternatives in enumerate(needs):
        for right in alternatives:
            await ask([*others[number], right], None, f"with {right}")
    return faults


async def test_x7_every_api_needs_exactly_its_rights(user: Client, rights: Rights) -> None:
    orders_id = await create_topic(user, ORDERS)
    for kind, key in enumerate((GROUP, TXN)):
        (found,) = (await user.ask(FindCoordinatorRequest(key_type=kind, coordinator_keys=[key]))).coordinators
        assert found.error_code == 0
    faults = [fault for row in BROKER for fault in await checked(row, user, rights, orders_id)]
    assert not faults, "\n".join(faults)


async def test_each_topic_of_a_produce_is_decided_apart(user: Client, rights: Rights) -> None:
    names = [f"t{number}" for number in range(5)]
    for name in names:
        await create_topic(user, name)
    allowed = {"t1", "t3"}
    rights.grant(*((Operation.WRITE, ResourceType.TOPIC, name) for name in allowed))
    answer = await user.ask(producing(*((name, 0, batch(b"x")) for name in [*names, "nowhere"])), version=12)
    codes = {topic.name: topic.partition_responses[0].error_code for topic in answer.responses}
    assert codes == {name: 0 if name in allowed else TOPIC_DENIED for name in [*names, "nowhere"]}
    assert {name for _, _, _, name in rights.denials} == {"t0", "t2", "t4", "nowhere"}
    rights.grant_all()
    ends = {name: len(await read_all(user, name)) for name in names}
    assert ends == {name: int(name in allowed) for name in names}


@pytest.mark.parametrize(("replica_id", "code"), [(7, 0), (-1, TOPIC_DENIED)])
async def test_a_follower_lists_offsets_with_the_right_to_fetch(
    user: Client, rights: Rights, replica_id: int, code: int
) -> None:
    await create_topic(user, ORDERS)
    rights.grant((Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME))
    asked = ListOffsetsTopic(name=ORDERS, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-4)])
    answer = await user.ask(ListOffsetsRequest(replica_id=replica_id, topics=[asked]), version=9)
    assert answer.topics[0].partitions[0].error_code == code
    assert bool(rights.denials) == bool(code)


async def read_all(client: Client, topic: str) -> list[bytes | None]:
    return values(parts(await client.ask(fetching(topic, wanted()), version=12))[0])


async def test_a_right_that_is_taken_away_counts_in_a_running_fetch_session(user: Client, rights: Rights) -> None:
    topic_id = await create_topic(user, ORDERS)
    first = await user.ask(fetching(topic_id, wanted(), session=(0, 0)))
    assert first.session_id
    assert (await produce(user, ORDERS, batch(b"x"))).error_code == 0
    rights.grant()
    answer = await user.ask(fetching(topic_id, session=(first.session_id, 1)))
    assert [(part.error_code, bytes(part.records)) for part in parts(answer).values()] == [(TOPIC_DENIED, b"")]
    rights.grant((Operation.READ, ResourceType.TOPIC, ORDERS))
    again = await user.ask(fetching(topic_id, session=(first.session_id, 2)))
    assert values(parts(again)[0]) == [b"x"]


async def test_a_right_that_is_taken_away_counts_in_a_fetch_that_waits(
    broker: MemoryBroker, user: Client, rights: Rights
) -> None:
    await create_topic(user, ORDERS)
    rights.grant((Operation.READ, ResourceType.TOPIC, ORDERS))
    producer = await broker.connect()
    answers = []

    async def fetch() -> None:
        answers.append(await user.ask(fetching(ORDERS, wanted(), max_wait_ms=60_000), version=12))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetch)
        await wait_all_tasks_blocked()
        rights.grant((Operation.WRITE, ResourceType.TOPIC, ORDERS))
        assert (await produce(producer, ORDERS, batch(b"x"))).error_code == 0
    assert [(part.error_code, bytes(part.records)) for part in parts(answers[0]).values()] == [(TOPIC_DENIED, b"")]
    assert rights.denials == [("Fetch", Operation.READ, ResourceType.TOPIC, ORDERS)]


async def test_a_denied_change_of_settings_does_not_tell_the_current_ones(user: Client, rights: Rights) -> None:
    assert (await alter_configs(user, BROKER_RESOURCE, "", {"log.local.retention.ms": 5_000}))[0] == 0
    change = {"log.retention.ms": 4_000}  # less than the other
    code, text = await alter_configs(user, BROKER_RESOURCE, "", change)
    assert code == ErrorCode.INVALID_REQUEST
    assert "5000" in str(text)
    rights.grant()
    code, text = await alter_configs(user, BROKER_RESOURCE, "", change)
    assert (code, text) == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, None)


async def test_a_replica_id_gives_a_consumer_no_right(user: Client, rights: Rights) -> None:
    await create_topic(user, ORDERS)
    await produce(user, ORDERS, batch(b"x"))
    rights.grant((Operation.READ, ResourceType.TOPIC, ORDERS))
    for version in (12, 4):
        as_follower = await user.ask(fetching(ORDERS, wanted(), replica_id=1), version=version)
        assert [part.error_code for part in parts(as_follower).values()] == [TOPIC_DENIED]


async def test_a_false_follower_replaces_no_session_and_keeps_its_quotas() -> None:
    settings = {"max.incremental.fetch.session.cache.slots": 1}
    async with memory_broker(settings=settings) as broker:
        broker.node.broker.authorizer = rights = Rights()
        user = await broker.connect()
        topic_id = await create_topic(user, ORDERS)
        quota = {"entity": [{"entity_type": "client-id", "entity_name": None}],
                 "ops": [{"key": "consumer_byte_rate", "value": 1.0}]}  # fmt: skip
        asked = Row("AlterClientQuotas", {"entries": [quota]}, (), None).request(topic_id)
        assert (await user.ask(asked)).entries[0].error_code == 0
        rights.grant((Operation.READ, ResourceType.TOPIC, ORDERS))
        session = (await user.ask(fetching(ORDERS, wanted(), session=(0, 0)), version=12)).session_id
        assert session
        for _ in range(3):
            false = fetching(ORDERS, wanted(), session=(0, 0), replica_id=1)
            answer = await user.ask(false, version=12)
            assert answer.session_id == 0
            codes = {code for code in codes_in(answer) if code}
            assert codes <= {TOPIC_DENIED}
        assert answer.throttle_time_ms > 0
        again = await user.ask(fetching(ORDERS, session=(session, 1)), version=12)
        assert again.error_code == 0


async def test_lists_have_only_what_the_client_may_describe(user: Client, rights: Rights) -> None:
    for name in ("open", "secret"):
        await create_topic(user, name)
    rights.grant((Operation.DESCRIBE, ResourceType.TOPIC, "open"))
    for topics in (None, [MetadataRequestTopic(name="open")]):
        answer = await user.ask(MetadataRequest(topics=topics), version=12)
        assert [topic.name for topic in answer.topics] == ["open"]
    assert not rights.denials, "nobody asked for the secret topic"


@pytest.mark.parametrize("name", ["secret", "nowhere"])
async def test_deletions_do_not_tell_whether_a_hidden_topic_exists(user: Client, rights: Rights, name: str) -> None:
    topic_id = await create_topic(user, "secret")
    rights.grant()
    asked = [DeleteTopicState(name=name, topic_id=ZERO_UUID), DeleteTopicState(name=None, topic_id=topic_id)]
    assert await deleted(user, *asked) == {(name, ZERO_UUID, TOPIC_DENIED), (None, topic_id, TOPIC_DENIED)}
    rights.grant((Operation.DESCRIBE, ResourceType.TOPIC, "secret"))
    assert await deleted(user, *asked[1:]) == {("secret", topic_id, TOPIC_DENIED)}


async def deleted(client: Client, *asked: DeleteTopicState) -> set[tuple[str | None, UUID, int]]:
    """The answers to a DeleteTopics."""
    answer = await client.ask(DeleteTopicsRequest(topics=list(asked), topic_names=[], timeout_ms=1_000))
    return {(topic.name, topic.topic_id, topic.error_code) for topic in answer.responses}


async def test_a_client_that_may_describe_a_topic_learns_that_it_is_unknown(user: Client, rights: Rights) -> None:
    rights.grant((Operation.DESCRIBE, ResourceType.TOPIC, "nowhere"))
    asked = [DeleteTopicState(name="nowhere", topic_id=ZERO_UUID), DeleteTopicState(name=None, topic_id=UUID(int=77))]
    assert await deleted(user, *asked) == {
        ("nowhere", ZERO_UUID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (None, UUID(int=77), ErrorCode.UNKNOWN_TOPIC_ID),
    }


async def test_a_deletion_by_id_needs_no_right_to_describe(user: Client, rights: Rights) -> None:
    topic_id = await create_topic(user, "secret")
    may, may_not = (
        acl(ANYBODY, operation, "secret", permission=permission)
        for operation, permission in ((Operation.DELETE, Permission.ALLOW), (Operation.DESCRIBE, Permission.DENY))
    )
    rights.update(by_id([may, may_not]))
    by_name = DeleteTopicState(name="secret", topic_id=ZERO_UUID)
    assert await deleted(user, by_name) == {("secret", ZERO_UUID, TOPIC_DENIED)}
    assert await deleted(user, DeleteTopicState(name=None, topic_id=topic_id)) == {("secret", topic_id, 0)}


async def test_a_topic_that_is_being_created_cannot_be_deleted_without_rights() -> None:
    asked = CreateTopicsRequest(
        topics=[CreatableTopic(name="new", num_partitions=1, replication_factor=1, assignments=[], configs=[])],
        timeout_ms=1_000,
    )
    async with memory_broker() as broker:  # a run tells the id that the next one draws too
        await broker.connect()
        topic_id = (await broker.node.broker.controller.ask(asked, CreateTopicsResponse)).topics[0].topic_id
    async with memory_broker() as broker:
        node = broker.node.broker
        node.authorizer = rights = Rights()
        rights.grant()
        client = await broker.connect()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.controller.ask, asked, CreateTopicsResponse)
            answers = await deleted(client, DeleteTopicState(name=None, topic_id=topic_id))
            assert answers == {(None, topic_id, ErrorCode.UNKNOWN_TOPIC_ID)}
        assert topic_id in node.image.topics_by_id


async def test_a_denied_transactional_produce_is_one_denial(user: Client, rights: Rights) -> None:
    await create_topic(user, ORDERS)
    (found,) = (await user.ask(FindCoordinatorRequest(key_type=1, coordinator_keys=[TXN]))).coordinators
    assert found.error_code == 0
    rights.grant((Operation.WRITE, ResourceType.TRANSACTIONAL_ID, TXN))
    records = batch(b"x", producer_id=1, producer_epoch=0, base_sequence=0, is_transactional=True)
    request = producing((ORDERS, 0, records))
    request.transactional_id = TXN
    answer = await user.ask(request, version=12)
    assert answer.responses[0].partition_responses[0].error_code == TOPIC_DENIED
    assert rights.denials == [("Produce", Operation.WRITE, ResourceType.TOPIC, ORDERS)]


@pytest.mark.parametrize(("api", "kind"), [("AlterConfigs", 8), ("AlterConfigs", 99), ("IncrementalAlterConfigs", 99)])
async def test_unknown_types_of_settings_are_refused_before_the_rights(
    user: Client, rights: Rights, api: str, kind: int
) -> None:
    rights.grant()
    (answer,) = (await user.ask(Row(api, changing(kind, "1"), (), None).request(ZERO_UUID))).responses
    assert (answer.error_code, answer.error_message) == (ErrorCode.INVALID_REQUEST, f"Unknown resource type {kind}")
    assert rights.denials == []


@pytest.mark.parametrize(("version", "protocol"), [(6, ""), (7, None)])
async def test_a_denied_join_names_no_protocol(
    user: Client, rights: Rights, version: int, protocol: str | None
) -> None:
    rights.grant()
    answer = await user.ask(joining(), version=version)
    assert (answer.error_code, answer.protocol_name) == (ErrorCode.GROUP_AUTHORIZATION_FAILED, protocol)


async def test_a_creation_keeps_the_settings_from_those_who_must_not_describe_them(
    user: Client, rights: Rights
) -> None:
    rights.grant((Operation.CREATE, ResourceType.TOPIC, "new"))
    topics = [
        CreatableTopic(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[])
        for name in ("new", "other")
    ]
    answer = await user.ask(CreateTopicsRequest(topics=topics, timeout_ms=1_000))
    new, other = answer.topics
    assert (new.name, new.error_code, new.num_partitions, new.configs) == ("new", 0, -1, [])
    assert new.topic_config_error_code == TOPIC_DENIED
    assert (other.name, other.error_code) == ("other", TOPIC_DENIED)


async def test_a_denied_reassignment_has_a_result_for_each_partition(user: Client, rights: Rights) -> None:
    topic_id = await create_topic(user, ORDERS)
    rights.grant()
    (row,) = (row for row in BROKER if row.api == "AlterPartitionReassignments")
    (topic,) = (await user.ask(row.request(topic_id))).responses
    assert (topic.name, [part.error_code for part in topic.partitions]) == (ORDERS, [DENIED[ResourceType.CLUSTER]])


async def test_authorized_operations_are_those_of_the_client(user: Client, rights: Rights) -> None:
    await create_topic(user, ORDERS)
    rights.grant((Operation.WRITE, ResourceType.TOPIC, ORDERS))
    asked = MetadataRequest(
        topics=[MetadataRequestTopic(name=ORDERS)],
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    answer = await user.ask(asked, version=10)
    assert answer.topics[0].topic_authorized_operations == 1 << Operation.WRITE | 1 << Operation.DESCRIBE
    assert answer.cluster_authorized_operations == 0
    rights.grant((Operation.ALTER, ResourceType.CLUSTER, CLUSTER_NAME))
    described = await user.ask(DescribeClusterRequest(include_cluster_authorized_operations=True))
    assert described.cluster_authorized_operations == 1 << Operation.ALTER | 1 << Operation.DESCRIBE
    described = await user.ask(DescribeClusterRequest(include_cluster_authorized_operations=False))
    assert described.cluster_authorized_operations == -(2**31)


def documented() -> list[str]:
    """The rows of the table in docs/security.md, one for each API and set of rights."""

    def shown(right: Right) -> str:
        return f"{right[0].name} on {right[1].name}"

    rows: dict[str, None] = {}
    for table, where in ((BROKER, "broker"), (CONTROLLER, "controller")):
        for row in table:
            if where == "controller" and row in BROKER:
                continue
            needs = ", ".join(" or ".join(map(shown, alternatives)) for alternatives in row.rights())
            codes = row.codes or ((row.code,) if row.code else ())
            refusal = ", ".join(dict.fromkeys(code.name for code in codes)) or "left out of the list"
            api = row.api if where == "broker" else f"{row.api} (controller)"
            rows[f"| {api} | {needs} | {refusal} |"] = None
    return sorted(rows) + [f"| {api} | none | {why} |" for api, why in sorted(NO_RIGHTS.items())]


def test_the_documented_table_is_this_table() -> None:
    text = Path("docs/security.md").read_text()
    table = text.partition("| API | needs | refused with |\n")[2].partition("\n\n")[0].splitlines()[1:]
    assert table == documented()
