from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from kbroker.spark.errors import InvalidOption
from kbroker.spark.options import SourceOptions, Subscription
from kbroker.spark.positions import AtOffsets, AtTimestamp, AtTimestamps, Edge

STORE = {"rsm.config.dir": "/tier"}
BROKER = {"kafka.bootstrap.servers": "one:9092, two:9093"}
ORDERS = {"subscribe": "orders"}


def parse(**options: str) -> SourceOptions:
    return SourceOptions.parse({**STORE, **ORDERS, **options})


def test_option_names_are_case_insensitive() -> None:
    found = SourceOptions.parse({"RSM.Config.Dir": "/tier", "SUBSCRIBE": "a, b", "minpartitions": "7"})
    assert found.subscription == Subscription(topics=("a", "b"))
    assert found.min_partitions == 7
    assert found.store is not None
    assert found.store.configs == {"dir": "/tier"}


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("startingOffset", "startingOffsets"),
        ("subscribes", "subscribe"),
        ("kafka.bootstrap.server", "kafka.bootstrap.servers"),
        ("failOnDataLost", "failOnDataLoss"),
        ("kafka.security.protocoll", "kafka.security.protocol"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_name(name: str, near: str) -> None:
    with pytest.raises(InvalidOption, match=rf"there is no option {name}.*did you mean {near}\?"):
        SourceOptions.parse({**BROKER, **STORE, **ORDERS, name: "x"})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (ORDERS, "neither a broker nor a store"),
        (STORE, "no topic is named"),
        ({**STORE, **ORDERS, "assign": '{"a": [0]}'}, "subscribe and assign are given together"),
        ({**STORE, "subscribe": " , "}, "names no topic"),
        ({**STORE, "subscribePattern": "("}, "not a regular expression"),
        ({**STORE, "assign": '{"a": {"0": 1}}'}, "no list of partitions"),
        ({**STORE, "assign": "{}"}, "no partition"),
        ({**STORE, **ORDERS, "minPartitions": "0"}, "minPartitions=0"),
        ({**STORE, **ORDERS, "maxOffsetsPerTrigger": "many"}, "maxOffsetsPerTrigger=many"),
        (
            {**STORE, **ORDERS, "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"},
            "more than maxOffsetsPerTrigger",
        ),
        ({**STORE, **ORDERS, "maxTriggerDelay": "soon"}, "not a duration"),
        ({**STORE, **ORDERS, "failOnDataLoss": "maybe"}, "neither true nor false"),
        ({**STORE, **ORDERS, "startingOffsets": "erliest"}, "startingOffsets=erliest"),
        ({**STORE, **ORDERS, "endingOffsets": "earliest"}, "endingOffsets=earliest"),
        ({**STORE, **ORDERS, "startingOffsets": '{"a": {"0": 1.5}}'}, "not a whole number"),
        ({**STORE, **ORDERS, "startingOffsets": '{"a": {"0": true}}'}, "not a whole number"),
        ({**STORE, **ORDERS, "startingOffsets": '{"a": {"x": 1}}'}, "partition 'x'"),
        ({**STORE, **ORDERS, "startingOffsets": '{"a": {"0": -3}}'}, "offset -3"),
        ({**STORE, **ORDERS, "startingOffsets": '{"a": '}, "not JSON"),
        ({**STORE, **ORDERS, "startingTimestamp": "yesterday"}, "is not a number"),
        ({**STORE, **ORDERS, "startingTimestamp": "-1"}, "startingTimestamp has -1, which is not a time"),
        ({**STORE, **ORDERS, "endingTimestamp": "9223372036854775808"}, "which is not a time"),
        ({**STORE, **ORDERS, "startingOffsetsByTimestamp": '{"a": {"0": -4}}'}, "has -4, which is not a time"),
        ({**STORE, **ORDERS, "startingOffsetsByTimestampStrategy": "nearest"}, "Strategy=nearest"),
        ({**STORE, **ORDERS, "minPartitions": "9" * 5000}, "is not a whole number"),
        ({**STORE, **ORDERS, "kbroker.chunk.bytes": "1000"}, "at least 65536"),
        ({**STORE, **ORDERS, "kbroker.chunk.bytes": "2147483648"}, "at most 1073741824"),
        ({**STORE, **ORDERS, "kafka.security.protocol": "SSL"}, "but no broker"),
        ({**STORE, **ORDERS, "kafka.bootstrap.servers": "host:port"}, "host:port"),
        ({**STORE, **ORDERS, **BROKER, "kafka.security.protocol": "TLS"}, "is not one of PLAINTEXT"),
        ({**STORE, **ORDERS, "kbroker.config": "/no/such/file"}, "No such file"),
    ],
)
def test_an_invalid_option_is_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOption) as raised:
        SourceOptions.parse(options)
    assert said in str(raised.value)
    assert "Remedy: " in str(raised.value)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"startingOffsets": "earliest"}, Edge.EARLIEST),
        ({"startingOffsets": "Latest"}, Edge.LATEST),
        (
            {"startingOffsets": '{"a": {"0": 5, "1": -1, "2": -2}}'},
            AtOffsets({("a", 0): 5, ("a", 1): Edge.LATEST, ("a", 2): Edge.EARLIEST}),
        ),
        ({"startingOffsetsByTimestamp": '{"a": {"0": 5}}', "startingOffsets": "latest"}, AtTimestamps({("a", 0): 5})),
        ({"startingOffsetsByTimestamp": '{"a": {"0": 5}}', "startingTimestamp": "77"}, AtTimestamp(77)),
        ({}, None),
    ],
)
def test_one_time_overrides_many_and_times_override_offsets(options: dict[str, str], wanted: object) -> None:
    assert parse(**options).starting == wanted


def test_defaults_differ_for_batches_and_streams() -> None:
    batch, stream = parse().for_batch(), parse().for_streaming()
    assert (batch.starting, batch.ending) == (Edge.EARLIEST, Edge.LATEST)
    assert stream.starting is Edge.LATEST


@pytest.mark.parametrize(
    "options",
    [
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"orders": {"0": -1}}'},
        {"endingOffsets": '{"orders": {"0": -2}}'},
    ],
)
def test_a_batch_that_would_read_nothing_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(InvalidOption, match="would read nothing"):
        parse(**options).for_batch()


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    text = {"endingOffsets": "latest", "endingTimestamp": "5", "endingOffsetsByTimestamp": '{"orders": {"0": 5}}'}
    with pytest.raises(InvalidOption, match="no meaning in a streaming query"):
        parse(**{name: text[name]}).for_streaming()


@pytest.mark.parametrize(("text", "wanted"), [("30s", 30_000), ("15 minutes", 900_000), ("500ms", 500), ("7", 7)])
def test_a_delay_has_a_unit(text: str, wanted: int) -> None:
    assert parse(maxTriggerDelay=text).max_trigger_delay_ms == wanted


def test_client_settings_are_translated() -> None:
    found = SourceOptions.parse(
        {**BROKER, **ORDERS, "kafka.request.timeout.ms": "5000", "kafka.security.protocol": "ssl"}
    )
    assert found.client is not None
    assert found.client["bootstrap_servers"] == ["one:9092", "two:9093"]
    assert found.client["request_timeout_ms"] == 5000
    assert found.client["security_protocol"] == "SSL"
    assert found.store is None


def test_a_brokers_settings_file_names_the_store(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        "log.dirs=/data\nremote.log.storage.system.enable=true\nremote.log.storage.manager.class.name=minio\n"
        "rsm.config.bucket=archive\nrsm.config.secret.key=hidden\n"
    )
    found = SourceOptions.parse({**ORDERS, "kbroker.config": str(file), "rsm.config.prefix": "mine"}).store
    assert found is not None
    assert found.class_name == "minio"
    assert found.configs == {"bucket": "archive", "secret.key": "hidden", "prefix": "mine"}


def test_the_default_store_is_next_to_the_brokers_data(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("log.dirs=/data\nremote.log.storage.system.enable=true\n")
    found = SourceOptions.parse({**ORDERS, "kbroker.config": str(file)}).store
    assert found is not None
    assert found.configs == {"log.dir": "/data"}


def test_secrets_are_not_in_repr_and_options_can_be_pickled() -> None:
    found = SourceOptions.parse(
        {
            **BROKER,
            **ORDERS,
            "rsm.config.secret.key": "hidden-1",
            "kafka.sasl.jaas.config": 'Plain required username="me" password="hidden-2";',
        }
    )
    assert "hidden" not in repr(found)
    assert pickle.loads(pickle.dumps(found)) == found


def test_a_pattern_matches_whole_names() -> None:
    assert Subscription(pattern="ord.*").matches("orders")
    assert not Subscription(pattern="ord").matches("orders")
    assert Subscription(pattern="ord.*").names is None
    assert Subscription(partitions=(("a", 1), ("b", 0), ("a", 0))).names == ("a", "b")


def test_a_subscription_has_assigned_partitions_or_all() -> None:
    assigned = Subscription(partitions=(("a", 1), ("b", 0)))
    assert [assigned.has(*each) for each in (("a", 1), ("a", 0), ("b", 0), ("c", 0))] == [True, False, True, False]
    assert [Subscription(topics=("a",)).has(*each) for each in (("a", 7), ("b", 0))] == [True, False]
    assert [Subscription(pattern="a.*").has(*each) for each in (("ab", 7), ("b", 0))] == [True, False]
