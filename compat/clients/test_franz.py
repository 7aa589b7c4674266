"""franz-go: idempotent producers, groups of both protocols, transactions with random aborts, administration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from compat.brokers import Broker
from compat.clients import filling, franz
from compat.clients.samples import CODECS
from compat.features import raise_features
from compat.oracle.groups import await_coordinator

PARTITIONS, EACH = 3, 200
PROTOCOLS = ("classic", "consumer")


@pytest.fixture(scope="module", params=["classic", "newest"])
def broker(request: pytest.FixtureRequest, start_broker: Callable[..., Broker]) -> Broker:
    """A broker with the features of Kafka 3.9, and one with transaction.version 2 and group.version 1."""
    franz.binary()
    started = start_broker()
    if request.param == "newest":
        raise_features(started.bootstrap_servers, {"transaction.version": 2, "group.version": 1})
    return started


@pytest.fixture
def servers(broker: Broker) -> str:
    return broker.bootstrap_servers


@pytest.fixture
def protocols(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The group protocols of the broker."""
    return PROTOCOLS if "newest" in request.node.name else PROTOCOLS[:1]


@pytest.fixture
def topic(servers: str, new_topic_name: Callable[[str], str]) -> str:
    return filling.create(servers, new_topic_name("franz"), PARTITIONS)


def fill(servers: str, topic: str) -> set[str]:
    """Fill a topic; returns its values."""
    values = {each: [b"%d-%d" % (each, number) for number in range(EACH)] for each in range(PARTITIONS)}
    filling.fill(servers, topic, values)
    return {value.decode() for part in values.values() for value in part}


def test_idempotent_producers_write_each_codec_once(servers: str, topic: str) -> None:
    for codec in CODECS:
        franz.run("produce", servers=servers, topic=topic, codec=codec, count=1_000)
    found = franz.run("consume", servers=servers, topic=topic, count=1_000 * len(CODECS))
    expected = {f"{codec}-{number}" for codec in CODECS for number in range(1_000)}
    assert Counter(value for part in found.values() for value in part) == Counter(expected)


def test_groups_read_everything_although_a_member_leaves(servers: str, topic: str, protocols: tuple[str, ...]) -> None:
    values = fill(servers, topic)
    for protocol in protocols:
        group = f"{topic}-{protocol}"
        await_coordinator(servers, group)
        found = franz.run("group", servers=servers, topic=topic, group=group, protocol=protocol, count=len(values))
        assert Counter(found) == Counter(values), protocol


@pytest.mark.parametrize("seed", [1, 2])
def test_random_aborts_leave_each_record_once(
    servers: str, topic: str, protocols: tuple[str, ...], seed: int, new_topic_name: Callable[[str], str]
) -> None:
    values = fill(servers, topic)
    for protocol in protocols:
        output = filling.create(servers, new_topic_name("copies"), PARTITIONS)
        await_coordinator(servers, output)
        ended = franz.run(
            "transact", servers=servers, topic=topic, output=output, group=output, protocol=protocol, id=output,
            count=len(values), seed=seed,
        )  # fmt: skip
        assert min(ended.values()) > 0, ended
        copies = {value.upper() for value in values}
        found = franz.run("consume", servers=servers, topic=output, count=len(copies), isolation="read_committed")
        assert Counter(value for part in found.values() for value in part) == Counter(copies)


def test_kadm_sees_an_open_transaction(servers: str, new_topic_name: Callable[[str], str]) -> None:
    name = new_topic_name("kadm")
    found = franz.run("admin", servers=servers, topic=name, id=name)
    assert found == {"ongoing": True, "state": "Ongoing", "open": 1}
