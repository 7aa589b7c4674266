"""Topics with cleanup.policy=compact: they can be created, and refuse records without a key (W5)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from compat.oracle.batches import Batch, Item
from compat.oracle.conftest import Pair, same, soon_same
from compat.oracle.produce_table import FUTURE, GOOD, INVALID_RECORD, INVALID_TIMESTAMP, NONE
from compat.oracle.test_produce import partition_of, produce
from compat.oracle.test_topics_and_configs import APPEND, SET, TOPIC, alter, by_name, resource

KEYED = Item(key=b"k")
ROWS = {
    "no key": (GOOD, NONE, INVALID_RECORD),
    "a key": (Batch([KEYED]).encode(), NONE, NONE),
    "one null key of three": (Batch([KEYED, Item(), KEYED]).encode(), NONE, INVALID_RECORD),
    "a null key and a wrong timestamp": (
        Batch([Item(), Item(key=b"k", timestamp_delta=FUTURE)]).encode(),
        INVALID_TIMESTAMP,
        INVALID_TIMESTAMP,
    ),
}


@pytest.mark.parametrize("policy", ["delete", "compact", "compact,delete"])
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
def test_w5_a_compacted_topic_refuses_records_without_a_key(
    pair: Pair, new_topic_name: Callable[[str], str], policy: str, row: tuple[bytes, int, int]
) -> None:
    records, plain, compacted = row
    topic = pair.create(new_topic_name("compacted"), configs={"cleanup.policy": policy})
    answer = same(pair.call("Produce", 9, produce(topic.name, records)))
    assert partition_of(answer)["ErrorCode"] == (plain if policy == "delete" else compacted)


@pytest.mark.parametrize("operation", [(APPEND, "compact"), (SET, "compact")], ids=["append", "set"])
def test_a_topic_can_become_compacted(
    pair: Pair, new_topic_name: Callable[[str], str], operation: tuple[int, str]
) -> None:
    topic = pair.create(new_topic_name("compacted"))
    same(pair.call("IncrementalAlterConfigs", 1, alter(TOPIC, topic.name, ("cleanup.policy", *operation))))
    wanted = resource(TOPIC, topic.name, "cleanup.policy")
    soon_same(lambda: list(by_name(pair.call("DescribeConfigs", 4, {"Resources": [wanted], "IncludeSynonyms": True}))))
