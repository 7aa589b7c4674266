"""kafka-transactions on open, prepared, hanging and ended transactions, and TransactionalMessageCopier.

A hanging transaction is one in a log that its coordinator does not know. Here Produce 9 writes it to a partition that
was never added, which the broker accepts with `transaction.partition.verification.enable=false`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

import pytest

from compat.brokers import Broker
from compat.clients import filling
from compat.clients.transactional import PATIENCE_S, ConfluentTransactions, read
from compat.conftest import KafkaTool
from compat.features import raise_features
from compat.kafka_tools.copier import Copier
from compat.kafka_tools.image_tools import image_tool
from compat.oracle.batches import Batch, Item
from compat.oracle.groups import await_coordinator
from compat.oracle.raw import connected
from compat.waiting import until

Transactions = Callable[..., list[dict[str, str]]]


@pytest.fixture(scope="module", params=[0, 2], ids=["tv0", "tv2"])
def broker(request: pytest.FixtureRequest, start_broker: Callable[..., Broker]) -> Broker:
    """A broker with this transaction.version that lets transactions hang."""
    started = start_broker("transaction.partition.verification.enable=false")
    raise_features(started.bootstrap_servers, {"transaction.version": request.param} if request.param else {})
    return started


@pytest.fixture
def servers(broker: Broker) -> str:
    return broker.bootstrap_servers


@pytest.fixture
def topic(servers: str, new_topic_name: Callable[[str], str]) -> str:
    return filling.create(servers, new_topic_name("transactions"))


@pytest.fixture
def transactions(request: pytest.FixtureRequest, servers: str, kafka_tool: KafkaTool) -> Transactions:
    """`transactions("list")`: the rows that kafka-transactions prints; the image's one prints the same.

    With transaction.version 2, transactions are aborted by the image's tool.
    """
    aborts_with_image = request.node.callspec.params["broker"] == 2

    def run(*arguments: str) -> list[dict[str, str]]:
        words = ("--bootstrap-server", servers, *arguments)
        is_change = arguments[0] in {"abort", "forceTerminateTransaction"}
        if is_change and aborts_with_image:
            done = image_tool("kafka-transactions", *words)
            assert (done.returncode, done.stdout) == (0, ""), done.stderr
            return []
        found = rows(kafka_tool("TransactionsCommand", *words, timeout_s=PATIENCE_S).stdout)
        if not is_change:
            done = image_tool("kafka-transactions", *words)
            assert done.returncode == 0, done.stderr
            assert timeless(rows(done.stdout)) == timeless(found)
        return found

    return run


def timeless(found: list[dict[str, str]]) -> list[dict[str, str]]:
    """The rows, in order of their cells, without durations."""
    kept = [{name: cell for name, cell in row.items() if "Duration" not in name} for row in found]
    return sorted(kept, key=lambda row: sorted(row.items()))


def rows(printed: str) -> list[dict[str, str]]:
    """A table by the names of its columns."""
    lines = [[cell.strip() for cell in line.split("\t")] for line in printed.splitlines() if line.strip()]
    return [dict(zip(lines[0], line, strict=False)) for line in lines[1:]] if lines else []


@pytest.fixture
def open_transaction(servers: str, topic: str) -> Iterator[ConfluentTransactions]:
    """A transaction with two records, named as its topic."""
    producer = ConfluentTransactions(servers, topic)
    producer.begin()
    producer.send(topic, {0: [b"one", b"two"]})
    yield producer
    producer.close()


def test_open_transactions_are_listed_and_described(
    topic: str, open_transaction: ConfluentTransactions, transactions: Transactions
) -> None:
    listed = {row["TransactionalId"]: row for row in transactions("list")}
    assert listed[topic]["TransactionState"] == "Ongoing"
    (described,) = transactions("describe", "--transactional-id", topic)
    assert described["ProducerId"] == listed[topic]["ProducerId"]
    assert (described["TransactionState"], described["TransactionTimeoutMs"]) == ("Ongoing", "60000")
    assert described["TopicPartitions"] == f"{topic}-0"
    assert 0 <= int(described["CurrentTransactionStartTimeMs"]) <= time.time() * 1000
    (producing,) = transactions("describe-producers", "--topic", topic, "--partition", "0")
    assert producing["ProducerId"] == described["ProducerId"]
    assert producing["ProducerEpoch"] == described["ProducerEpoch"]
    assert (producing["LastSequence"], producing["CurrentTransactionStartOffset"]) == ("1", "0")
    open_transaction.commit()
    until(
        lambda: transactions("describe", "--transactional-id", topic)[0]["TransactionState"] == "CompleteCommit",
        patience_s=PATIENCE_S,
    )
    (producing,) = transactions("describe-producers", "--topic", topic, "--partition", "0")
    assert producing["CurrentTransactionStartOffset"] == "None"


def test_a_forced_termination_aborts_and_fences(
    servers: str, topic: str, open_transaction: ConfluentTransactions, transactions: Transactions
) -> None:
    transactions("forceTerminateTransaction", "--transactionalId", topic)
    open_transaction.commit()
    assert open_transaction.fenced
    filling.fill(servers, topic, {0: [b"the end"]})
    assert read("confluent-kafka", servers, topic, 1, "read_committed") == {0: []}
    (described,) = transactions("describe", "--transactional-id", topic)
    assert described["TransactionState"] == "Empty"  # it aborts by InitProducerId


def hang(servers: str, topic: str, *, producer_id: int) -> None:
    """Write a transaction that no coordinator knows, with records of an hour ago."""
    batch = Batch(
        [Item(b"hanging")],
        base_timestamp=int(time.time() * 1000) - 3_600_000,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=0,
        attributes=0x10,
    )
    message = {
        "TransactionalId": "unknown", "Acks": -1, "TimeoutMs": 30_000,
        "TopicData": [{"Name": topic, "PartitionData": [{"Index": 0, "Records": batch.encode()}]}],
    }  # fmt: skip
    with connected(servers) as connection:
        answer = connection.call("Produce", 9, message)
    assert answer["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == 0, answer


def test_hanging_transactions_are_found_and_aborted(servers: str, topic: str, transactions: Transactions) -> None:
    hang(servers, topic, producer_id=123_456)
    filling.fill(servers, topic, {0: [b"the end"]})
    search = ("find-hanging", "--topic", topic, "--max-transaction-timeout", "1")
    (found,) = transactions(*search)
    assert (found["Topic"], found["Partition"], found["ProducerId"]) == (topic, "0", "123456")
    assert int(found["DurationMinutes"] if "DurationMinutes" in found else found["Duration(min)"]) >= 59
    transactions("abort", "--topic", topic, "--partition", "0", "--start-offset", found["StartOffset"])
    assert not transactions(*search)
    assert read("confluent-kafka", servers, topic, 1, "read_committed") == {0: []}
    assert read("confluent-kafka", servers, topic, 1, "read_uncommitted") == {0: [b"hanging"]}


@pytest.mark.parametrize("mode", [[], ["--group-mode", "--use-group-metadata"]], ids=["assigned", "group"])
def test_the_copier_copies_once_despite_random_aborts(
    servers: str,
    topic: str,
    mode: Sequence[str],
    kafka_tool: KafkaTool,
    new_topic_name: Callable[[str], str],
) -> None:
    assert callable(kafka_tool)  # Java is available
    output = filling.create(servers, new_topic_name("copies"))
    await_coordinator(servers, output)
    records = [b"%d" % number for number in range(2_000)]
    filling.fill(servers, topic, {0: records})
    copier = Copier(servers, topic, output, transactional_id=output, group=output, transaction_size=50, more=mode)
    assert copier.wait(PATIENCE_S) == 0, copier.complaints()
    assert copier.copied() == len(records)
    filling.fill(servers, output, {0: [b"the end"]})
    found = read("confluent-kafka", servers, output, 1, "read_committed")[0]
    assert Counter(found) == Counter(records)
    everything = read("confluent-kafka", servers, output, 1, "read_uncommitted")[0]
    assert len(everything) > len(records), "nothing was aborted"
