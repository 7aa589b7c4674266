"""DescribeConfigs and IncrementalAlterConfigs, and the effects of a change."""

import pytest

from kbroker.testing.memory_node import Client, memory_broker
from tests.handlers.asking import BROKER, BROKER_LOGGER, TOPIC, alter_configs, batch, create_topic, produce
from wire.errors import ErrorCode
from wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

CLIENT_METRICS, GROUP = 16, 32
DEFAULT, STATIC, TOPIC_SOURCE, DYNAMIC_DEFAULT, DYNAMIC_BROKER = 5, 4, 1, 3, 2


async def alter(client: Client, kind: int, name: str, key: str, value: str | None, *, version: int = 1) -> int:
    """Set one key, or delete it if the value is None; return the error code."""
    return (await alter_configs(client, kind, name, {key: value}, version=version))[0]


async def describe(client: Client, kind: int, name: str, key: str) -> tuple[str | None, int]:
    """(value, source) of one key."""
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=[key])
    answer = await client.ask(DescribeConfigsRequest(resources=[resource], include_synonyms=True))
    (found,) = answer.results[0].configs
    assert found.synonyms[0].value == found.value
    return found.value, found.config_source


async def test_a_changed_topic_setting_reaches_its_log_at_once(client: Client) -> None:
    await create_topic(client, "t")
    large = batch(b"x" * 2000)
    assert (await produce(client, "t", large)).error_code == 0
    assert await alter(client, TOPIC, "t", "max.message.bytes", "1000") == 0
    assert (await produce(client, "t", large)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert await describe(client, TOPIC, "t", "max.message.bytes") == ("1000", TOPIC_SOURCE)
    assert await alter(client, TOPIC, "t", "max.message.bytes", None) == 0
    assert (await produce(client, "t", large)).error_code == 0
    assert await describe(client, TOPIC, "t", "max.message.bytes") == ("1048588", DEFAULT)


async def test_a_changed_broker_default_reaches_logs_without_their_own_setting(
    client: Client,
) -> None:
    await create_topic(client, "a")
    await create_topic(client, "b", settings={"max.message.bytes": 5000})
    large = batch(b"x" * 2000)
    assert await alter(client, BROKER, "", "message.max.bytes", "1000") == 0
    assert (await produce(client, "a", large)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert (await produce(client, "b", large)).error_code == 0
    assert await describe(client, TOPIC, "a", "max.message.bytes") == ("1000", DYNAMIC_DEFAULT)
    assert await alter(client, BROKER, "1", "message.max.bytes", "3000") == 0
    assert (await produce(client, "a", large)).error_code == 0
    assert await describe(client, TOPIC, "a", "max.message.bytes") == ("3000", DYNAMIC_BROKER)
    await create_topic(client, "c")
    assert (await produce(client, "c", batch(b"x" * 4000))).error_code == ErrorCode.MESSAGE_TOO_LARGE


async def test_changed_settings_survive_a_restart() -> None:
    async with memory_broker() as broker:
        client = await broker.connect()
        await create_topic(client, "t", settings={"retention.ms": 5000})
        await alter(client, TOPIC, "t", "max.message.bytes", "1000")
        await alter(client, BROKER, "", "log.retention.ms", "7777")
    async with memory_broker(broker.disk) as broker:
        client = await broker.connect()
        assert (await produce(client, "t", batch(b"x" * 2000))).error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert await describe(client, TOPIC, "t", "retention.ms") == ("5000", TOPIC_SOURCE)
        assert await describe(client, BROKER, "1", "log.retention.ms") == ("7777", DYNAMIC_DEFAULT)


async def test_resources_that_cannot_be_described_have_an_error(client: Client) -> None:
    for kind, name, code in (
        (TOPIC, "absent", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "../x", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "7", ErrorCode.INVALID_REQUEST),
        (BROKER, "one", ErrorCode.INVALID_REQUEST),
        (99, "t", ErrorCode.INVALID_REQUEST),
    ):
        resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        answer = await client.ask(DescribeConfigsRequest(resources=[resource]))
        assert (answer.results[0].error_code, answer.results[0].configs) == (code, [])


async def test_all_settings_of_a_topic_are_described_in_every_version(client: Client) -> None:
    await create_topic(client, "t", settings={"retention.ms": 5000})
    resource = DescribeConfigsResource(resource_type=TOPIC, resource_name="t", configuration_keys=None)
    for version in range(1, 5):
        answer = await client.ask(
            DescribeConfigsRequest(resources=[resource], include_documentation=version >= 3), version=version
        )
        found = {config.name: config for config in answer.results[0].configs}
        assert found["retention.ms"].value == "5000"
        assert {"cleanup.policy", "min.insync.replicas", "segment.bytes"} < found.keys()
        assert bool(found["retention.ms"].documentation) == (version >= 3)
        assert found["retention.ms"].synonyms == []


@pytest.mark.parametrize(("kind", "name", "expected"), [(TOPIC, "t", None), (BROKER_LOGGER, "1", "")])
async def test_documentation_is_returned_on_request_except_for_loggers(
    kind: int, name: str, expected: str | None, client: Client
) -> None:
    await create_topic(client, "t")
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    answer = await client.ask(DescribeConfigsRequest(resources=[resource]))
    assert {config.documentation for config in answer.results[0].configs} == {expected}


@pytest.mark.parametrize("kind", [BROKER, BROKER_LOGGER])
async def test_a_broker_id_of_thousands_of_digits_is_refused(kind: int, client: Client) -> None:
    name = "9" * 5_000
    resource = DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
    answer = await client.ask(DescribeConfigsRequest(resources=[resource]))
    assert answer.results[0].error_code == ErrorCode.INVALID_REQUEST
    assert await alter(client, kind, name, "max.connections", "5") == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("resource", "value", "why"),
    [
        ((GROUP, "share.session.timeout.ms"), 50_000, "Groups of the share and streams protocols"),
        ((GROUP, "share.isolation.level"), "read_committed", "Groups of the share and streams protocols"),
        ((CLIENT_METRICS, "interval.ms"), 1000, "The broker does not collect metrics from clients"),
        ((CLIENT_METRICS, "metrics"), "org.apache.kafka", "The broker does not collect metrics from clients"),
    ],
)
async def test_group_and_subscription_settings_are_stored_with_a_warning(
    resource: tuple[int, str], value: object, why: str, client: Client, caplog: pytest.LogCaptureFixture
) -> None:
    kind, key = resource
    assert await alter_configs(client, kind, "mine", {key: value}) == (0, None)
    lines = [line.getMessage() for line in caplog.records if "has no effect" in line.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith(f"{key}={value} has no effect: {why}")
    assert (await describe(client, kind, "mine", key))[0] == str(value)
    assert await alter_configs(client, kind, "mine", {key: None}) == (0, None)
    assert len([line for line in caplog.records if "has no effect" in line.getMessage()]) == 1


async def test_a_list_setting_of_a_subscription_can_be_appended(client: Client) -> None:
    await alter_configs(client, CLIENT_METRICS, "mine", {"metrics": "a"})
    appended = AlterConfigsResource(
        resource_type=CLIENT_METRICS,
        resource_name="mine",
        configs=[AlterableConfig(name="metrics", config_operation=2, value="b")],
    )
    answer = await client.ask(IncrementalAlterConfigsRequest(resources=[appended], validate_only=False))
    assert answer.responses[0].error_code == 0
    assert (await describe(client, CLIENT_METRICS, "mine", "metrics"))[0] == "a,b"
