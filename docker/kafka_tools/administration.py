"""Tools that ask a broker and print the answer: versions, cluster id, features, quorum, elections, DeleteRecords."""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import wire.messages
from kbroker import __version__
from kbroker.cli import CommandFailed, Parser
from kbroker.cli._admin import add_connection_flags, admin_client, client_settings, connected, explain_code
from kbroker.cli._say import say
from kbroker.cli._table import print_rows
from kbroker.client.cluster import Cluster
from kbroker.metadata.names import CLUSTER_METADATA_TOPIC
from kbroker.runtime.clocks import RealClocks
from wire.errors import ErrorCode, check
from wire.messages.api_versions import ApiVersionsRequest
from wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from wire.messages.describe_cluster import DescribeClusterRequest
from wire.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from wire.messages.unregister_broker import UnregisterBrokerRequest
from wire.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest
from wire.schema import request_class, schema_of
from wire.types import uuid_to_text

METADATA_VERSIONS: Final = [
    *("3.0-IV1", "3.1-IV0", "3.2-IV0", "3.3-IV0", "3.3-IV1", "3.3-IV2", "3.3-IV3", "3.4-IV0", "3.5-IV0", "3.5-IV1"),
    *("3.5-IV2", "3.6-IV0", "3.6-IV1", "3.6-IV2", "3.7-IV0", "3.7-IV1", "3.7-IV2", "3.7-IV3", "3.7-IV4", "3.8-IV0"),
    *("3.9-IV0", "4.0-IV0", "4.0-IV1", "4.0-IV2", "4.0-IV3", "4.1-IV0", "4.1-IV1", "4.2-IV0", "4.2-IV1", "4.3-IV0"),
]
"""The names of metadata.version, beginning with level 1."""

_METADATA_VERSION: Final = "metadata.version"
_UPGRADE, _SAFE_DOWNGRADE = 1, 2
_ELECTIONS: Final = {"preferred": 0, "unclean": 1}
_ASK_VERSIONS: Final = ApiVersionsRequest(client_software_name="kbroker", client_software_version=__version__)
_FLAGS_AFTER_ACTION: Final = {"cub", "kafka-cluster"}
_LOOK_MS: Final = 200
_FENCED_BROKERS: Final = 2  # the first version of DescribeCluster that can list them
_ALREADY_ELECTED: Final = {ErrorCode.ELECTION_NOT_NEEDED}


def tool_parser(
    tool: str, actions: Mapping[str, str] | None = None
) -> tuple[Parser, dict[str, argparse.ArgumentParser]]:
    """A parser with the connection's flags, which come before the action as in Kafka's tools, except in some tools."""
    parser = Parser(prog=tool)
    if tool not in _FLAGS_AFTER_ACTION:
        add_connection_flags(parser)
    if actions is None:
        return parser, {}
    parts = parser.add_subparsers(dest="action", required=True, parser_class=argparse.ArgumentParser)
    return parser, {name: parts.add_parser(name, help=text) for name, text in actions.items()}


def api_versions(words: Sequence[str]) -> int:
    """kafka-broker-api-versions."""
    parser, _ = tool_parser("kafka-broker-api-versions")
    with admin_client(parser.parse_args(list(words))) as client:
        for module in pkgutil.iter_modules(wire.messages.__path__):
            importlib.import_module(f"wire.messages.{module.name}")
        racks = {each.broker_id: each.rack for each in _described(client).brokers}
        for node_id, (host, port) in sorted(client.nodes.items()):
            answer = client.ask(_ASK_VERSIONS, node_id)
            check(answer.error_code)
            rack = racks.get(node_id) or "null"
            lines = ",\n\t".join(_api_line(each) for each in answer.api_keys)
            say(f"{host}:{port} (id: {node_id} rack: {rack} isFenced: false) -> (")
            print(f"\t{lines}\n)")
    return 0


def _api_line(api: Any) -> str:
    known = request_class(api.api_key)
    name = f"UNKNOWN({api.api_key})" if known is None else f"{known.__name__.removesuffix('Request')}({api.api_key})"
    lowest, highest = api.min_version, api.max_version
    versions = str(highest) if lowest == highest else f"{lowest} to {highest}"
    if known is None:
        return f"{name}: {versions} [unusable: node too new]"
    usable = min(highest, schema_of(known).versions.highest)
    return f"{name}: {versions} [usable: {usable}]"


def _described(client: Cluster) -> Any:
    answer = client.ask(DescribeClusterRequest(include_cluster_authorized_operations=False))
    check(answer.error_code, answer.error_message)
    return answer


def cluster(words: Sequence[str]) -> int:
    """kafka-cluster cluster-id, unregister and list-endpoints."""
    texts = {
        "cluster-id": "print the id of the cluster",
        "unregister": "remove the registration of a broker that has ended",
        "list-endpoints": "print the addresses of the brokers",
    }
    parser, actions = tool_parser("kafka-cluster", texts)
    for action in actions.values():
        add_connection_flags(action)
        action.add_argument("-c", "--config", type=Path, dest="command_config", metavar="FILE")
    actions["unregister"].add_argument("-i", "--id", type=int, required=True)
    actions["list-endpoints"].add_argument("--include-fenced-brokers", action="store_true")
    options = parser.parse_args(list(words))
    with admin_client(options) as client:
        if options.action == "cluster-id":
            say(f"Cluster ID: {_described(client).cluster_id}")
        elif options.action == "unregister":
            answer = client.ask_controller(UnregisterBrokerRequest(broker_id=options.id))
            check(answer.error_code, answer.error_message)
            say(f"Broker {options.id} is no longer registered.")
        else:
            _show_endpoints(client, with_fenced=options.include_fenced_brokers)
    return 0


def _show_endpoints(client: Cluster, *, with_fenced: bool) -> None:
    if with_fenced and not client.serves(DescribeClusterRequest, version=_FENCED_BROKERS):
        raise CommandFailed("the broker does not support --include-fenced-brokers")
    request = DescribeClusterRequest(include_cluster_authorized_operations=False, include_fenced_brokers=with_fenced)
    answer = client.ask(request)
    check(answer.error_code, answer.error_message)
    rows = [
        (
            each.broker_id,
            each.host,
            each.port,
            each.rack or "null",
            "fenced" if each.is_fenced else "unfenced",
            "broker",
        )
        for each in sorted(answer.brokers, key=lambda each: each.broker_id)
    ]
    print_rows(("ID", "HOST", "PORT", "RACK", "STATE", "ENDPOINT_TYPE"), rows)


def cub(words: Sequence[str]) -> int:
    """cub kafka-ready -b HOST:PORT BROKERS SECONDS, of Confluent's images: wait until so many brokers run."""
    parser, actions = tool_parser("cub", {"kafka-ready": "wait for brokers"})
    ready = actions["kafka-ready"]
    add_connection_flags(ready)
    ready.add_argument("-c", "--config", type=Path, dest="command_config", metavar="FILE")
    ready.add_argument("brokers", type=int)
    ready.add_argument("timeout_s", type=int, metavar="SECONDS")
    options = parser.parse_args(list(words))
    clock = RealClocks()
    end_ms = clock.now_ms() + options.timeout_s * 1000
    waiting = {"bootstrap_timeout_ms": max(options.timeout_s, 1) * 1000, "waits_for_broker": True}
    with connected(client_settings(options) | waiting) as client:
        while (found := len(client.metadata([]).brokers)) < options.brokers:
            if clock.now_ms() >= end_ms:
                raise CommandFailed(f"expected {options.brokers} brokers, but found {found}")
            client.wait(_LOOK_MS)
    return 0


def features(words: Sequence[str]) -> int:
    """kafka-features describe, upgrade and downgrade."""
    texts = {"describe": "print the features", "upgrade": "raise features", "downgrade": "lower features"}
    parser, actions = tool_parser("kafka-features", texts)
    for name in ("upgrade", "downgrade"):
        actions[name].add_argument("--feature", action="append", required=True, metavar="NAME=LEVEL")
        actions[name].add_argument("--dry-run", action="store_true")
    options = parser.parse_args(list(words))
    with admin_client(options) as client:
        if options.action == "describe":
            _show_features(client)
            return 0
        return _update_features(client, options)


def _show_features(client: Cluster) -> None:
    answer = client.ask(_ASK_VERSIONS)
    check(answer.error_code)
    final = {each.name: each.max_version_level for each in answer.finalized_features}
    for each in sorted(answer.supported_features, key=lambda each: each.name):
        columns = {
            "Feature": each.name,
            "SupportedMinVersion": level_name(each.name, each.min_version),
            "SupportedMaxVersion": level_name(each.name, each.max_version),
            "FinalizedVersionLevel": level_name(each.name, final.get(each.name, 0)),
            "Epoch": answer.finalized_features_epoch,
        }
        say("\t".join(f"{name}: {value}" for name, value in columns.items()))


def level_name(feature: str, level: int) -> str:
    """A level as Kafka's tools print it: that of metadata.version by its name."""
    is_named = feature == _METADATA_VERSION and 0 < level <= len(METADATA_VERSIONS)
    return METADATA_VERSIONS[level - 1] if is_named else str(level)


def _update_features(client: Cluster, options: argparse.Namespace) -> int:
    is_upgrade = options.action == "upgrade"
    updates = []
    for text in options.feature:
        name, _, level = text.partition("=")
        if level in METADATA_VERSIONS and name == _METADATA_VERSION:
            level = str(METADATA_VERSIONS.index(level) + 1)
        if not level.isdecimal():
            raise CommandFailed(f"Can't parse feature=level string {text}")
        kind = _UPGRADE if is_upgrade else _SAFE_DOWNGRADE
        updates.append(FeatureUpdateKey(feature=name, max_version_level=int(level), upgrade_type=kind))
    answer = client.ask_controller(UpdateFeaturesRequest(feature_updates=updates, validate_only=options.dry_run))
    codes = {each.feature: (each.error_code, each.error_message) for each in answer.results}
    failed = 0
    did = ("can be " if options.dry_run else "was ") + ("upgraded" if is_upgrade else "downgraded")
    for each in updates:
        code, message = codes.get(each.feature, (answer.error_code, answer.error_message))
        if code:
            failed += 1
            say(f"Could not {options.action} {each.feature} to {each.max_version_level}. {explain_code(code, message)}")
        else:
            say(f"{each.feature} {did} to {each.max_version_level}.")
    if failed:
        raise CommandFailed(f"{failed} out of {len(updates)} operation(s) failed.")
    return 0


def quorum(words: Sequence[str]) -> int:
    """kafka-metadata-quorum describe."""
    parser, actions = tool_parser("kafka-metadata-quorum", {"describe": "print the state of the quorum"})
    for name in ("status", "replication"):
        actions["describe"].add_argument(f"--{name}", action="store_true")
    options = parser.parse_args(list(words))
    if options.status == options.replication:
        parser.error("exactly one of --status and --replication must be specified with describe")
    asked = DescribeQuorumRequestTopicData(
        topic_name=CLUSTER_METADATA_TOPIC, partitions=[DescribeQuorumRequestPartitionData(partition_index=0)]
    )
    with admin_client(options) as client:
        answer = client.ask(DescribeQuorumRequest(topics=[asked]))
        check(answer.error_code, answer.error_message)
        ((state,),) = (topic.partitions for topic in answer.topics)
        check(state.error_code, state.error_message)
        replicas = [*state.current_voters, *state.observers]
        leader = next(each for each in replicas if each.replica_id == state.leader_id)
        if options.replication:
            _show_replication(state, leader)
        else:
            _show_status(_described(client).cluster_id, state, leader)
    return 0


def _show_status(cluster_id: str, state: Any, leader: Any) -> None:
    followers = [each for each in state.current_voters if each is not leader]
    behind = max((leader.log_end_offset - each.log_end_offset for each in followers), default=0)
    seen = [each.last_caught_up_timestamp for each in followers]
    lag_ms = 0 if not seen else -1 if min(seen) < 0 else leader.last_caught_up_timestamp - min(seen)
    rows = {
        "ClusterId": cluster_id,
        "LeaderId": state.leader_id,
        "LeaderEpoch": state.leader_epoch,
        "HighWatermark": state.high_watermark,
        "MaxFollowerLag": behind,
        "MaxFollowerLagTimeMs": lag_ms,
        "CurrentVoters": json.dumps([{"id": each.replica_id} for each in state.current_voters]),
        "CurrentObservers": json.dumps([{"id": each.replica_id} for each in state.observers]),
    }
    for name, value in rows.items():
        say(f"{name + ':':<24}{value}")


def _show_replication(state: Any, leader: Any) -> None:
    say("NodeId\tDirectoryId\tLogEndOffset\tLag\tLastFetchTimestamp\tLastCaughtUpTimestamp\tStatus")
    kinds = [("Follower", each) for each in state.current_voters if each is not leader]
    for kind, each in [("Leader", leader), *kinds, *(("Observer", each) for each in state.observers)]:
        directory = uuid_to_text(each.replica_directory_id)
        lag = leader.log_end_offset - each.log_end_offset
        times = f"{each.last_fetch_timestamp}\t{each.last_caught_up_timestamp}"
        say(f"{each.replica_id}\t{directory}\t{each.log_end_offset}\t{lag}\t{times}\t{kind}")


def elect_leaders(words: Sequence[str]) -> int:
    """kafka-leader-election."""
    parser, _ = tool_parser("kafka-leader-election")
    parser.add_argument("--admin.config", dest="command_config", type=Path)
    parser.add_argument("--election-type", required=True, type=str.lower, choices=_ELECTIONS)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--topic")
    which.add_argument("--all-topic-partitions", action="store_true")
    which.add_argument("--path-to-json-file", type=Path)
    parser.add_argument("--partition", type=int)
    options = parser.parse_args(list(words))
    if (options.topic is None) != (options.partition is None):
        parser.error("--topic and --partition are used together")
    chosen = [(options.topic, options.partition)] if options.topic else None
    if options.path_to_json_file:
        chosen = [(each["topic"], each["partition"]) for each in _partitions_in(options.path_to_json_file)]
    asked = None if chosen is None else [TopicPartitions(topic=name, partitions=[index]) for name, index in chosen]
    kind = _ELECTIONS[options.election_type]
    with admin_client(options) as client:
        answer = client.ask_controller(ElectLeadersRequest(election_type=kind, topic_partitions=asked))
        check(answer.error_code)
    done, already, failed = [], [], []
    for topic in answer.replica_election_results:
        for each in topic.partition_result:
            name = f"{topic.topic}-{each.partition_id}"
            if not each.error_code:
                done.append(name)
            elif each.error_code in _ALREADY_ELECTED:
                already.append(name)
            else:
                failed.append(f"{name}: {explain_code(each.error_code, each.error_message)}")
    if done:
        say(
            f"Successfully completed leader election ({options.election_type.upper()}) for partitions {', '.join(done)}"
        )
    if already:
        say(f"Valid replica already elected for partitions {', '.join(already)}")
    if failed:
        raise CommandFailed("\n".join(["Error completing leader election for", *failed]))
    return 0


def _partitions_in(path: Path) -> list[dict[str, Any]]:
    """The partitions in a JSON file, {"partitions": [{"topic": ..., "partition": ...}]}."""
    try:
        found: list[dict[str, Any]] = json.loads(path.read_bytes())["partitions"]
        for each in found:
            each["topic"], each["partition"]
        return found
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandFailed(f"cannot read {path}: {error!r}") from error


def delete_records(words: Sequence[str]) -> int:
    """kafka-delete-records."""
    parser, _ = tool_parser("kafka-delete-records")
    parser.add_argument("--offset-json-file", type=Path, required=True)
    options = parser.parse_args(list(words))
    try:
        offsets = {
            (str(each["topic"]), int(each["partition"])): int(each["offset"])
            for each in _partitions_in(options.offset_json_file)
        }
    except (KeyError, ValueError, TypeError) as error:
        raise CommandFailed(f"{options.offset_json_file} has a partition without an offset: {error!r}") from error
    say("Executing records delete operation")
    with admin_client(options) as client:
        client.metadata({topic for topic, _ in offsets})
        lines, failed = [], 0
        for (topic, index), offset in offsets.items():
            name = f"{topic}-{index}"
            if (topic, index) not in client.leaders:
                failed += 1
                lines.append(f"partition: {name}\terror: This server does not host this topic-partition.")
                continue
            part = DeleteRecordsPartition(partition_index=index, offset=offset)
            request = DeleteRecordsRequest(
                topics=[DeleteRecordsTopic(name=topic, partitions=[part])], timeout_ms=client.timeout_ms
            )
            ((result,),) = (each.partitions for each in client.ask(request, client.leader((topic, index))).topics)
            failed += bool(result.error_code)
            lines.append(
                f"partition: {name}\terror: {explain_code(result.error_code)}"
                if result.error_code
                else f"partition: {name}\tlow_watermark: {result.low_watermark}"
            )
    say("Records delete operation completed:")
    for line in lines:
        say(line)
    if failed:
        print(f"{failed} of {len(offsets)} partitions failed", file=sys.stderr)
    return 1 if failed else 0
