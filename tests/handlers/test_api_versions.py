"""ApiVersions: the table, the features, and the names of clients."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kbroker.controller.features import SUPPORTED_FEATURES
from kbroker.handlers import Context, discover
from kbroker.handlers.api_versions import api_versions, unsupported_version
from kbroker.testing.net import stream_pair
from wire.codec import decode, encode
from wire.errors import ErrorCode
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

BROKER = SimpleNamespace(
    image=SimpleNamespace(offset=42, levels={"group.version": 1, "metadata.version": 21, "kraft.version": 0}),
    supported_features=SUPPORTED_FEATURES,
)


def context(version: int) -> Context:
    _client, server = stream_pair()
    made = Context(server, listener="PLAINTEXT", served=discover())
    made.api_version = version
    return made


async def answer(version: int, *, name: str = "kcat", release: str = "1.7.1") -> ApiVersionsResponse:
    """The response as a client decodes it."""
    request = ApiVersionsRequest()
    if version >= 3:
        request = ApiVersionsRequest(client_software_name=name, client_software_version=release)
    response = await api_versions(request, BROKER, context(version))
    return decode(ApiVersionsResponse, version, encode(response, version), exact=True)


@pytest.mark.parametrize("version", range(5))
async def test_exactly_the_versions_of_the_handlers_are_advertised(version: int) -> None:
    response = await answer(version)
    assert response.error_code == 0
    assert {one.api_key: (one.min_version, one.max_version) for one in response.api_keys} == {
        key: tuple(handler.advertised) for key, handler in discover().items()
    }


@pytest.mark.parametrize("version", [3, 4])
async def test_features_are_finalized_at_the_image_offset(version: int) -> None:
    response = await answer(version)
    assert [(one.name, one.min_version_level, one.max_version_level) for one in response.finalized_features] == [
        ("group.version", 1, 1),
        ("metadata.version", 21, 21),
    ], "a feature at level 0 is left out"
    assert response.finalized_features_epoch == 42


@pytest.mark.parametrize("version", [3, 4])
async def test_old_clients_see_no_range_that_begins_at_0(version: int) -> None:
    response = await answer(version)
    ranges = {one.name: (one.min_version, one.max_version) for one in response.supported_features}
    assert ranges.pop("metadata.version") == (7, 30)
    assert ranges.get("group.version") == (None if version == 3 else (0, 1))
    assert ranges.get("transaction.version") == (None if version == 3 else (0, 2))
    assert all(lowest > 0 for lowest, _ in ranges.values()) == (version == 3)


@pytest.mark.parametrize(
    ("name", "release"), [("", "1"), ("kcat", ""), ("-kcat", "1"), ("kcat", "1."), ("k cat", "1"), ("kcat\n", "1")]
)
async def test_software_names_that_kafka_refuses_are_refused(name: str, release: str) -> None:
    response = await answer(3, name=name, release=release)
    assert response.error_code == ErrorCode.INVALID_REQUEST
    assert not response.api_keys


@pytest.mark.parametrize("name", ["k", "apache-kafka-java", "confluent.kafka-python", "A1"])
async def test_software_names_that_kafka_accepts_are_accepted(name: str) -> None:
    assert (await answer(4, name=name)).error_code == 0


def test_an_unknown_version_gets_the_range_of_this_api_only() -> None:
    response = unsupported_version(discover())
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(one.api_key, one.min_version, one.max_version) for one in response.api_keys] == [(18, 0, 4)]
