"""A controller asks for the rights that Kafka's asks for, also for requests that brokers forward."""

from __future__ import annotations

from uuid import UUID

import pytest
import trio

from kbroker import quorum
from kbroker.client.streaming import Connection, ConnectionClosed
from kbroker.metadata.principal import Principal
from kbroker.security.authorizing import CLUSTER_NAME, Operation, ResourceType
from tests.handlers.authorizations import CONTROLLER, ORDERS, Row, changing
from tests.handlers.test_authorization import Rights, checked
from tests.quorum.member import Member
from tests.quorum.site import controller_site, creation
from tests.security.acl_model import acl, by_id
from wire.errors import ErrorCode
from wire.framing import decode_response, encode_request_frame
from wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from wire.messages.envelope import EnvelopeRequest
from wire.messages.find_coordinator import FindCoordinatorRequest
from wire.stored.frame import encode_value
from wire.stored.principal import DefaultPrincipalData
from wire.types import ZERO_UUID


async def test_every_api_of_a_controller_needs_exactly_its_rights() -> None:
    rights = Rights()
    async with controller_site(authorizer=rights) as site:
        client = await site.connect()
        await site.register(client, 1)
        assert (await client.ask(creation(ORDERS, {0: [1]}))).topics[0].error_code == 0
        orders_id = site.image.topics_by_name[ORDERS].id
        faults = [fault for row in CONTROLLER for fault in await checked(row, client, rights, orders_id)]
        assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("api", "kind", "code"),
    [
        ("AlterConfigs", 8, ErrorCode.INVALID_REQUEST),
        ("AlterConfigs", 99, ErrorCode.UNSUPPORTED_VERSION),
        ("IncrementalAlterConfigs", 99, ErrorCode.UNSUPPORTED_VERSION),
    ],
)
async def test_unknown_types_of_settings_are_refused_before_the_rights(api: str, kind: int, code: ErrorCode) -> None:
    rights = Rights()
    async with controller_site(authorizer=rights) as site:
        client = await site.connect()
        rights.grant()
        (answer,) = (await client.ask(Row(api, changing(kind, "1"), (), code).request(ZERO_UUID))).responses
        assert answer.error_code == code
        assert rights.denials == []


async def forwarded(client: Connection, principal: Principal, name: str) -> int:
    """The code of a topic's creation that a broker forwards for a client at 10.0.0.9; -1 if the Envelope fails."""
    frame = b"".join(
        bytes(part) for part in encode_request_frame(creation(name, {0: [1]}), 7, correlation_id=1, client_id="c")
    )
    envelope = EnvelopeRequest(
        request_data=frame[4:],
        request_principal=encode_value(
            DefaultPrincipalData(type=principal.kind, name=principal.name, token_authenticated=False), 0
        ),
        client_host_address=bytes([10, 0, 0, 9]),
    )
    answer = await client.ask(envelope)
    if answer.error_code:
        assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return -1
    _, inner = decode_response(CreateTopicsResponse, 7, answer.response_data)
    return int(inner.topics[0].error_code)


async def test_a_forwarded_request_has_the_rights_of_its_client_and_not_of_the_broker() -> None:
    rights = Rights()
    async with controller_site(authorizer=rights) as site:
        client = await site.connect()
        await site.register(client, 1)
        alice, broker = "User:alice", "User:ANONYMOUS"
        cluster_action = acl(broker, Operation.CLUSTER_ACTION, CLUSTER_NAME, type=ResourceType.CLUSTER)
        create = acl(broker, Operation.CREATE, CLUSTER_NAME, type=ResourceType.CLUSTER)
        rights.update(by_id([cluster_action, create]))
        denied = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert await forwarded(client, Principal("User", "alice"), "a") == denied
        rights.update(by_id([cluster_action, acl(alice, Operation.CREATE, "a", host="10.0.0.9")]))
        assert await forwarded(client, Principal("User", "alice"), "b") == denied
        assert await forwarded(client, Principal("User", "alice"), "a") == 0
        rights.update(by_id([create, acl(alice, Operation.CREATE, "c")]))
        assert await forwarded(client, Principal("User", "alice"), "c") == -1, "only brokers may forward"


async def test_a_broker_creates_internal_topics_with_its_own_rights() -> None:
    rights = Rights()
    async with controller_site(authorizer=rights) as site:
        async with Member(site.env.network).running():
            broker = "User:ANONYMOUS"
            rights.update(
                by_id(
                    acl(broker, operation, CLUSTER_NAME, type=ResourceType.CLUSTER)
                    for operation in (Operation.CLUSTER_ACTION, Operation.CREATE)
                )
            )
            client = await Member(site.env.network).connect()
            code = -1
            with trio.fail_after(60):
                while code:  # until the broker has heard of the topic
                    found = await client.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]))
                    code = found.coordinators[0].error_code
                    await trio.sleep(0.1)
            client.close()
            assert {api for api, *_ in rights.denials} == set()
        assert isinstance(site.image.topics_by_name["__consumer_offsets"].id, UUID)


async def test_clients_do_not_get_the_error_of_a_brokers_envelope(caplog: pytest.LogCaptureFixture) -> None:
    rights = Rights()
    async with controller_site(authorizer=rights) as site, Member(site.env.network).running():
        rights.grant()
        client = await Member(site.env.network).connect()
        for _ in range(2):
            (topic,) = (await client.ask(creation("a", {0: [1]}))).topics
            assert topic.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
        client.close()
    (line,) = (vars(record)["kbroker_fields"] for record in caplog.records if "forwards for clients" in record.message)
    assert (line["code"], line["api"]) == ("CLUSTER_AUTHORIZATION_FAILED", "CreateTopics")
    assert "needs CLUSTER_ACTION" in line["hint"]


async def test_a_version_that_the_controller_does_not_know_closes_the_clients_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    older = {key: handler for key, handler in quorum.discover().items() if handler.request_class != CreateTopicsRequest}
    monkeypatch.setattr(quorum, "discover", lambda: older)
    async with controller_site() as site, Member(site.env.network).running():
        client = await Member(site.env.network).connect()
        with pytest.raises(ConnectionClosed):
            await client.ask(creation("a", {0: [1]}))
