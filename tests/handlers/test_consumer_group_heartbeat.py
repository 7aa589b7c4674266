"""ConsumerGroupHeartbeat refuses every member until KIP-848 is implemented."""

import pytest

from kbroker.testing.broker import Client
from wire.errors import ErrorCode
from wire.messages.api_versions import ApiVersionsRequest
from wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest


@pytest.mark.parametrize("version", [0, 1])
async def test_a_member_of_the_new_protocol_gets_a_final_error(
    client: Client, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    request = ConsumerGroupHeartbeatRequest(group_id="g", member_id="m", member_epoch=0, subscribed_topic_names=["t"])
    for _ in range(3):  # the warning is rate-limited
        answer = await client.ask(request, version=version)
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
        assert "use group.protocol=classic" in answer.error_message
    assert [line.getMessage() for line in caplog.records].count(answer.error_message) == 1


async def test_consumer_group_heartbeat_is_advertised_for_librdkafka(client: Client) -> None:
    answer = await client.ask(ApiVersionsRequest(client_software_name="a", client_software_version="1"))
    assert 68 in {one.api_key for one in answer.api_keys}
