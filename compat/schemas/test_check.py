"""The checker finds planted differences: each case changes one thing in a schema that agrees with its declaration."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from compat.schemas.check import check, compare, load_declarations, parse_json, snake_case
from wire.messages.delete_topics import DeleteTopicsRequest
from wire.messages.fetch import FetchRequest

AGREEING = """
// Versions 0 to 3 are gone.
{
  "apiKey": 1, "type": "request", "name": "FetchRequest", "validVersions": "4-18", "flexibleVersions": "12+",
  "fields": [
    { "name": "ClusterId", "type": "string", "versions": "12+", "nullableVersions": "12+", "default": "null",
      "taggedVersions": "12+", "tag": 0, "ignorable": true, "about": "see https://example.org" },  // a comment
    { "name": "ReplicaId", "type": "int32", "versions": "0-14", "default": "-1" },
    { "name": "ReplicaState", "type": "ReplicaState", "versions": "15+", "taggedVersions": "15+", "tag": 1, "fields": [
      { "name": "ReplicaId", "type": "int32", "versions": "15+", "default": "-1" },
      { "name": "ReplicaEpoch", "type": "int64", "versions": "15+", "default": "-1" }
    ]},
    { "name": "MaxWaitMs", "type": "int32", "versions": "0+" },
    { "name": "MinBytes", "type": "int32", "versions": "0+" },
    { "name": "MaxBytes", "type": "int32", "versions": "3+", "default": "0x7fffffff", "ignorable": true },
    { "name": "IsolationLevel", "type": "int8", "versions": "4+", "default": "0", "ignorable": true },
    { "name": "SessionId", "type": "int32", "versions": "7+", "default": "0", "ignorable": true },
    { "name": "SessionEpoch", "type": "int32", "versions": "7+", "default": "-1", "ignorable": true },
    { "name": "Topics", "type": "[]FetchTopic", "versions": "0+", "fields": [
      { "name": "Topic", "type": "string", "versions": "0-12", "ignorable": true },
      { "name": "TopicId", "type": "uuid", "versions": "13+", "ignorable": true },
      { "name": "Partitions", "type": "[]FetchPartition", "versions": "0+", "fields": [
        { "name": "Partition", "type": "int32", "versions": "0+" },
        { "name": "CurrentLeaderEpoch", "type": "int32", "versions": "9+", "default": "-1", "ignorable": true },
        { "name": "FetchOffset", "type": "int64", "versions": "0+" },
        { "name": "LastFetchedEpoch", "type": "int32", "versions": "12+", "default": "-1", "ignorable": false },
        { "name": "LogStartOffset", "type": "int64", "versions": "5+", "default": "-1", "ignorable": true },
        { "name": "PartitionMaxBytes", "type": "int32", "versions": "0+" },
        { "name": "ReplicaDirectoryId", "type": "uuid", "versions": "17+", "taggedVersions": "17+", "tag": 0,
          "ignorable": true },
        { "name": "HighWatermark", "type": "int64", "versions": "18+", "default": "9223372036854775807",
          "taggedVersions": "18+", "tag": 1, "ignorable": true }
      ]}
    ]},
    { "name": "ForgottenTopicsData", "type": "[]ForgottenTopic", "versions": "7+", "ignorable": false, "fields": [
      { "name": "Topic", "type": "string", "versions": "7-12", "ignorable": true },
      { "name": "TopicId", "type": "uuid", "versions": "13+", "ignorable": true },
      { "name": "Partitions", "type": "[]int32", "versions": "7+" }
    ]},
    { "name": "RackId", "type":  "string", "versions": "11+", "default": "", "ignorable": true }
  ]
}
"""

Schema = dict[str, Any]


def named(schema: Schema, *path: str) -> Schema:
    for name in path:
        (schema,) = (field for field in schema["fields"] if field["name"] == name)
    return schema


def swap_first_two(schema: Schema) -> None:
    fields = named(schema, "Topics", "Partitions")["fields"]
    fields[0], fields[2] = fields[2], fields[0]


PLANTED: dict[str, Callable[[Schema], object]] = {
    "another api key": lambda s: s.update(apiKey=2),
    "a version more": lambda s: s.update(validVersions="4-19"),
    "a lower version": lambda s: s.update(validVersions="3-18"),
    "another first flexible version": lambda s: s.update(flexibleVersions="11+"),
    "never flexible": lambda s: s.update(flexibleVersions="none"),
    "a response": lambda s: s.update(type="response"),
    "another order": swap_first_two,
    "a field more": lambda s: s["fields"].append({"name": "Extra", "type": "int8", "versions": "18+"}),
    "a field less": lambda s: s["fields"].pop(),
    "another name": lambda s: named(s, "MaxWaitMs").update(name="MaxWait"),
    "another type": lambda s: named(s, "IsolationLevel").update(type="int16"),
    "another type in a struct": lambda s: named(s, "Topics", "Partitions", "FetchOffset").update(type="uint32"),
    "an array": lambda s: named(s, "MaxWaitMs").update(type="[]int32"),
    "later versions": lambda s: named(s, "SessionId").update(versions="8+"),
    "fewer versions": lambda s: named(s, "ReplicaId").update(versions="0-13"),
    "versions of a tag": lambda s: named(s, "ClusterId").update(taggedVersions="13+"),
    "another tag": lambda s: named(s, "Topics", "Partitions", "HighWatermark").update(tag=2),
    "nullable": lambda s: named(s, "RackId").update(nullableVersions="11+"),
    "nullable later": lambda s: named(s, "ClusterId").update(nullableVersions="13+"),
    "a nullable array": lambda s: named(s, "Topics").update(nullableVersions="12+"),
    "another default": lambda s: named(s, "MaxBytes").update(default="0x7ffffffe"),
    "another default in a struct": lambda s: named(s, "ReplicaState", "ReplicaEpoch").update(default="0"),
    "a default for a required field": lambda s: named(s, "MinBytes").update(default="1"),
    "a default that is null": lambda s: named(s, "RackId").update(default="null"),
    "ignorable": lambda s: named(s, "ForgottenTopicsData").update(ignorable=True),
    "not ignorable": lambda s: named(s, "Topics", "Topic").update(ignorable=False),
}


def test_a_schema_that_agrees_has_no_difference() -> None:
    assert list(compare(parse_json(AGREEING), FetchRequest)) == []


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_each_planted_difference_is_found(plant: Callable[[Schema], object]) -> None:
    schema = copy.deepcopy(parse_json(AGREEING))
    plant(schema)
    assert list(compare(schema, FetchRequest))


def test_another_class_than_the_schemas_differs_all_over() -> None:
    assert len(list(compare(parse_json(AGREEING), DeleteTopicsRequest))) > 10


def test_declarations_without_a_schema_are_differences(tmp_path: Any) -> None:
    differences, summary = check(tmp_path)
    assert len(differences) == len(load_declarations())
    assert summary.startswith("0 schemas")


@pytest.mark.parametrize(
    ("kafka", "ours"),
    [
        ("ThrottleTimeMs", "throttle_time_ms"),
        ("IsMigratingZkBroker", "is_migrating_zk_broker"),
        ("KRaftVersionFeature", "kraft_version_feature"),
        ("Enable2Pc", "enable_2pc"),
        ("V3AndBelowTransactionalId", "v3_and_below_transactional_id"),
        ("ISR", "isr"),
        ("commitTimestamp", "commit_timestamp"),
    ],
)
def test_names_of_fields_become_attributes(kafka: str, ours: str) -> None:
    assert snake_case(kafka) == ours
