"""kafka-reassign-partitions: propose, start, verify, cancel and list reassignments of partitions, with throttles.

As Kafka's tool, this one prints errors on standard output, and --verify and --cancel remove the throttles of the
brokers and topics.

Source  ReassignPartitionsCommand of Apache Kafka 4.3.1, and a test that runs it beside this
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import UUID

from administration import tool_parser
from listings import directories_of
from plans import (
    Plan,
    Replica,
    as_json,
    joined,
    moves,
    named,
    read_plan,
    read_topics,
    repeated,
    throttled_replicas,
    to_start,
)

from kbroker.cli import CommandFailed
from kbroker.cli._actions import Actions
from kbroker.cli._admin import admin_client, explain_code
from kbroker.cli._configs import DELETE, SET
from kbroker.cli._say import say
from kbroker.client.cluster import Cluster, Partition
from kbroker.client.operations import by_topic
from kbroker.controller.placement import place_replicas
from kbroker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE
from kbroker.metadata.parts import BrokerImage
from kbroker.runtime.clocks import RealClocks
from wire.errors import ErrorCode, check
from wire.messages import alter_partition_reassignments as alter_api
from wire.messages import alter_replica_log_dirs as directories_api
from wire.messages import list_partition_reassignments as list_api
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

_RATES: Final = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_DIRECTORY_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"
_THROTTLED: Final = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
_MOVE_TIMEOUT_MS: Final = 10_000
_RETRY_MS: Final = 100
_EXISTING: Final = (
    "Cannot execute because there is an existing partition assignment.  Use --additional to override this and create a "
    "new partition assignment in addition to the existing one. The --additional flag can also be used to change the "
    "throttle by resubmitting the current reassignment."
)
_THROTTLE_WARNING: Final = (
    "Warning: You must run --verify periodically, until the reassignment completes, to ensure the throttle is removed."
)


class Refused(CommandFailed):
    """A failure that Kafka's tool prints without "Error: "."""


def reassign(words: Sequence[str]) -> int:
    """kafka-reassign-partitions."""
    options = _options(words)
    try:
        with admin_client(options) as client:
            _ACTIONS[options.action](client, options)
    except CommandFailed as failure:
        prefix = "" if isinstance(failure, Refused) else "Error: "
        for line in f"{prefix}{failure}".split("\n"):
            say(line)
        return 1
    return 0


def _options(words: Sequence[str]) -> argparse.Namespace:
    parser, _ = tool_parser("kafka-reassign-partitions")
    texts = {
        "generate": "propose a plan, without starting it",
        "execute": "start the reassignments of a plan",
        "verify": "print what the reassignments of a plan have reached; remove the throttles if nothing moves",
        "cancel": "cancel the reassignments of a plan",
        "list": "list all reassignments",
    }
    actions = Actions(parser, texts)
    number: dict[str, Any] = {"type": int, "metavar": "N"}
    file: dict[str, Any] = {"type": Path, "metavar": "FILE"}
    actions.add("execute verify cancel", "--reassignment-json-file", **file)
    actions.add("generate", "--topics-to-move-json-file", **file)
    actions.add("generate", "--broker-list", metavar="ID,...")
    actions.add("generate", "--disable-rack-aware", action="store_true")
    actions.add("execute", "--throttle", default=-1, **number)
    actions.add("execute", "--replica-alter-log-dirs-throttle", default=-1, **number)
    actions.add("execute", "--additional", action="store_true")
    actions.add("execute", "--disallow-replication-factor-change", action="store_true")
    actions.add("execute cancel", "--timeout", default=_MOVE_TIMEOUT_MS, **number)
    actions.add("verify cancel", "--preserve-throttles", action="store_true")
    parser.add_argument("--bootstrap-controller")
    options = parser.parse_args(list(words))
    actions.check(options)
    needed = {"generate": ("topics_to_move_json_file", "broker_list"), "list": ()}
    for name in needed.get(options.action, ("reassignment_json_file",)):
        if getattr(options, name) is None:
            parser.error(f"--{options.action} requires --{name.replace('_', '-')}")
    if options.bootstrap_controller is not None:
        parser.error("--bootstrap-controller is not supported; use --bootstrap-server with a broker")
    return options


# --- what there is ---


def _replicas_of(client: Cluster, topics: Iterable[str], *, skips_unknown: bool = False) -> dict[Partition, list[int]]:
    """The replicas of every partition of these topics. Raises CommandFailed for a topic that does not exist."""
    found: dict[Partition, list[int]] = {}
    for topic in client.metadata(sorted(set(topics))).topics:
        if topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            if skips_unknown:
                continue
            raise CommandFailed(f"Topic {topic.name} not found.")
        check(topic.error_code, f"topic {topic.name}: {explain_code(topic.error_code)}")
        found.update({(str(topic.name), each.partition_index): each.replica_nodes for each in topic.partitions})
    return found


def _ongoing(
    client: Cluster, partitions: Iterable[Partition] | None = None
) -> dict[Partition, list_api.OngoingPartitionReassignment]:
    """The reassignments of these partitions, or all of them."""
    topics = None
    if partitions is not None:
        topics = [
            list_api.ListPartitionReassignmentsTopics(name=name, partition_indexes=indexes)
            for name, indexes in by_topic(dict.fromkeys(partitions), lambda _, index: index)
        ]
    request = list_api.ListPartitionReassignmentsRequest(timeout_ms=client.timeout_ms, topics=topics)
    answer = client.ask_controller(request)
    check(answer.error_code, answer.error_message)
    return {(topic.name, each.partition_index): each for topic in answer.topics for each in topic.partitions}


def _directories(client: Cluster, brokers: Iterable[int]) -> tuple[dict[Replica, str], dict[Replica, str]]:
    """The directories of all replicas of these brokers, and the directories that they are moving to."""
    current: dict[Replica, str] = {}
    future: dict[Replica, str] = {}
    for broker in sorted(set(brokers)):
        for directory in directories_of(client, broker):
            if directory.error_code:
                continue
            for topic in directory.topics:
                for each in topic.partitions:
                    replica = Replica(broker, topic.name, each.partition_index)
                    (future if each.is_future_key else current)[replica] = directory.log_dir
    return current, future


def _current_plan(client: Cluster, replicas: Mapping[Partition, Sequence[int]]) -> str:
    live = {broker for each in replicas.values() for broker in each} & client.nodes.keys()
    return as_json(replicas, _directories(client, live)[0])


# --- the actions ---


def _generate(client: Cluster, options: argparse.Namespace) -> None:
    try:
        brokers = [int(text) for text in options.broker_list.split(",")]
    except ValueError as error:
        raise CommandFailed(f"--broker-list has a word that is not the id of a broker: {error}") from error
    if twice := repeated(brokers):
        raise CommandFailed(f"Broker list contains duplicate entries: {twice}")
    current = _replicas_of(client, read_topics(options.topics_to_move_json_file))
    usable = _usable(client, brokers, is_rack_aware=not options.disable_rack_aware)
    proposed: dict[Partition, Sequence[int]] = {}
    for start, (topic, indexes) in enumerate(by_topic(sorted(current), lambda _, index: index)):
        factor = len(current[topic, indexes[0]])
        placed = place_replicas(usable, start=start, partitions=len(indexes), replication_factor=factor)
        proposed.update({(topic, index): replicas for index, replicas in enumerate(placed)})
    say("Current partition replica assignment")
    say(_current_plan(client, current))
    say()
    say("Proposed partition reassignment configuration")
    say(as_json(proposed, {}))


def _usable(client: Cluster, wanted: Sequence[int], *, is_rack_aware: bool) -> list[BrokerImage]:
    """The running ones of these brokers, as the controller's placement takes them."""
    brokers = [each for each in client.metadata([]).brokers if each.node_id in wanted]
    racks = {each.node_id: each.rack if is_rack_aware else None for each in brokers}
    if is_rack_aware and None in racks.values() and any(racks.values()):
        raise CommandFailed(
            "Not all brokers have rack information. Add --disable-rack-aware in command line to make replica "
            "assignment without rack information."
        )
    return [BrokerImage(node_id, 0, UUID(int=0), {}, {}, rack, fenced=False) for node_id, rack in racks.items()]


def _execute(client: Cluster, options: argparse.Namespace) -> None:
    plan = read_plan(options.reassignment_json_file)
    wanted = to_start(plan)
    ongoing = _ongoing(client)
    if ongoing and not options.additional:
        raise Refused(_EXISTING)
    client.metadata([])
    for broker in sorted({broker for replicas in wanted.values() for broker in replicas}):
        if broker not in client.nodes:
            raise CommandFailed(f"Unknown broker id {broker}")
    existing = _replicas_of(client, {topic for topic, _ in wanted})
    if missing := [named(partition) for partition in wanted if partition not in existing]:
        raise CommandFailed(f"Unable to find partition: {', '.join(missing)}")
    current = {partition: existing[partition] for partition in wanted}
    say("Current partition replica assignment")
    say()
    say(_current_plan(client, current))
    say()
    say("Save this to use as the --reassignment-json-file option during rollback")
    _throttle(client, options, plan, moves(ongoing, wanted, current))
    failed = _alter(client, wanted, allows_factor_change=not options.disallow_replication_factor_change)
    if failed:
        raise Refused("\n".join(["Error reassigning partition(s):", *failed]))
    say(f"Successfully started partition reassignment{_s(wanted)} for {joined(map(named, sorted(wanted)))}")
    if plan.directories:
        _move_directories(client, plan.directories, options.timeout)


def _throttle(client: Cluster, options: argparse.Namespace, plan: Plan, moving: Mapping[Partition, Any]) -> None:
    """Limit the rates of the brokers that take part."""
    rate, directory_rate = options.throttle, options.replica_alter_log_dirs_throttle
    if rate < 0 and directory_rate < 0:
        return
    say(_THROTTLE_WARNING)
    if rate >= 0:
        throttled = throttled_replicas(moving)
        _configure(
            client, TOPIC_RESOURCE, {topic: dict(zip(_THROTTLED, of, strict=True)) for topic, of in throttled.items()}
        )
        brokers = {broker for move in moving.values() for broker in move.sources | move.destinations}
        _configure(client, BROKER_RESOURCE, {broker: dict.fromkeys(_RATES, str(rate)) for broker in brokers})
        say(f"The inter-broker throttle limit was set to {rate} B/s")
    if directory_rate >= 0:
        brokers = {replica.broker for replica in plan.directories}
        _configure(client, BROKER_RESOURCE, {broker: {_DIRECTORY_RATE: str(directory_rate)} for broker in brokers})
        say(f"The replica-alter-dir throttle limit was set to {directory_rate} B/s")


def _verify(client: Cluster, options: argparse.Namespace) -> None:
    plan = read_plan(options.reassignment_json_file)
    ongoing = _ongoing(client)
    idle = {partition[0] for partition, _ in plan.partitions if partition not in ongoing}
    current = _replicas_of(client, idle, skips_unknown=True)  # a topic that does not exist has no replicas
    say("Status of partition reassignment:")
    for partition, replicas in sorted(dict(plan.partitions).items()):
        name, found = named(partition), current.get(partition, [])
        if partition in ongoing:
            say(f"Reassignment of partition {name} is still in progress.")
        elif found == replicas:
            say(f"Reassignment of partition {name} is completed.")
        else:
            say(
                f"There is no active reassignment of partition {name}, but replica set is {joined(found)} rather than "
                f"{joined(replicas)}."
            )
    states = _states(client, plan.directories)
    for text, _ in states.values():
        say(text)
    if not states:
        say()
    if not ongoing and not any(is_moving for _, is_moving in states.values()) and not options.preserve_throttles:
        _clear_throttles(client, plan)


def _states(client: Cluster, wanted: Mapping[Replica, str]) -> dict[Replica, tuple[str, bool]]:
    """For each replica that a plan moves to a directory the text about it, and whether it still moves."""
    current, future = _directories(client, {replica.broker for replica in wanted})
    found: dict[Replica, tuple[str, bool]] = {}
    for replica, directory in sorted(wanted.items()):
        where = f"Partition {replica.topic}-{replica.partition}"
        now, then = current.get(replica), future.get(replica)
        if now is None:
            text = (
                f"{where} is not found in any live log dir on broker {replica.broker}. There is likely an offline log "
                "directory on the broker."
            )
        elif then == directory:
            text = f"Reassignment of replica {replica} is still in progress."
        elif then is not None:
            text = f"{where} on broker {replica.broker} is being moved to log dir {then} instead of {directory}."
        elif now == directory:
            text = f"Reassignment of replica {replica} completed successfully."
        else:
            text = f"{where} on broker {replica.broker} is not being moved from log dir {now} to {directory}."
        found[replica] = text, now is not None and then is not None
    return found


def _cancel(client: Cluster, options: argparse.Namespace) -> None:
    plan = read_plan(options.reassignment_json_file)
    partitions = [partition for partition, _ in plan.partitions]
    ongoing = _ongoing(client, partitions) if partitions else {}
    if ongoing:
        if failed := _alter(client, dict.fromkeys(ongoing)):
            raise Refused("\n".join([f"Error cancelling partition reassignment{_s(failed)} for:", *failed]))
        names = joined(map(named, sorted(ongoing)))
        say(f"Successfully cancelled partition reassignment{_s(ongoing)} for: {names}")
    else:
        say("None of the specified partition reassignments are active.")
    moving = [replica for replica, (_, is_moving) in _states(client, plan.directories).items() if is_moving]
    if moving:
        current, _ = _directories(client, {replica.broker for replica in moving})
        _move_directories(client, {replica: current[replica] for replica in moving}, options.timeout)
    else:
        # Kafka's tool does not end this line either.
        print("None of the specified partition moves are active.", end="")
    if not options.preserve_throttles:
        _clear_throttles(client, plan)


def _list(client: Cluster, _options: argparse.Namespace) -> None:
    ongoing = _ongoing(client)
    say("Current partition reassignments:" if ongoing else "No partition reassignments found.")
    for partition, each in sorted(ongoing.items()):
        adding = f" adding: {joined(each.adding_replicas)}." if each.adding_replicas else ""
        removing = f" removing: {joined(each.removing_replicas)}." if each.removing_replicas else ""
        say(f"{named(partition)}: replicas: {joined(each.replicas)}.{adding}{removing}")


_ACTIONS: Final = {"generate": _generate, "execute": _execute, "verify": _verify, "cancel": _cancel, "list": _list}


# --- changes ---


def _alter(
    client: Cluster, replicas: Mapping[Partition, Sequence[int] | None], *, allows_factor_change: bool = True
) -> list[str]:
    """Start reassignments, or cancel those whose replicas are None. Returns lines about what failed."""
    if not allows_factor_change and not client.serves(alter_api.AlterPartitionReassignmentsRequest, version=1):
        raise CommandFailed("the broker does not support --disallow-replication-factor-change")

    def of_partition(topic: str, index: int) -> alter_api.ReassignablePartition:
        wanted = replicas[topic, index]
        return alter_api.ReassignablePartition(partition_index=index, replicas=None if wanted is None else list(wanted))

    request = alter_api.AlterPartitionReassignmentsRequest(
        timeout_ms=client.timeout_ms,
        allow_replication_factor_change=allows_factor_change,
        topics=[
            alter_api.ReassignableTopic(name=name, partitions=partitions)
            for name, partitions in by_topic(sorted(replicas), of_partition)
        ],
    )
    answer = client.ask_controller(request)
    check(answer.error_code, answer.error_message)
    return [
        f"{topic.name}-{each.partition_index}: {explain_code(each.error_code, each.error_message)}"
        for topic in sorted(answer.responses, key=lambda topic: str(topic.name))
        for each in topic.partitions
        if each.error_code
    ]


def _move_directories(client: Cluster, wanted: Mapping[Replica, str], timeout_ms: int) -> None:
    """Begin to move replicas to directories. A replica that its broker does not have yet is tried again for a time."""
    clock = RealClocks()
    end_ms = clock.now_ms() + timeout_ms
    pending = dict(sorted(wanted.items()))
    while True:
        for replica, directory in list(pending.items()):
            topic = directories_api.AlterReplicaLogDirTopic(name=replica.topic, partitions=[replica.partition])
            request = directories_api.AlterReplicaLogDirsRequest(
                dirs=[directories_api.AlterReplicaLogDir(path=directory, topics=[topic])]
            )
            ((result,),) = (each.partitions for each in client.ask(request, replica.broker).results)
            if result.error_code == ErrorCode.REPLICA_NOT_AVAILABLE:
                continue
            if result.error_code:
                raise CommandFailed(f"Failed to alter dir for {replica}: {explain_code(result.error_code)}")
            del pending[replica]
            name = named((replica.topic, replica.partition))
            to = f"log directory to {directory} for replica {name} with broker {replica.broker}"
            say(f"Successfully started moving {to}")
        if not pending:
            return
        if clock.now_ms() >= end_ms:
            raise Refused(f"Timed out before log directory move{_s(pending)} could be started for: {joined(pending)}")
        client.wait(_RETRY_MS)


def _clear_throttles(client: Cluster, plan: Plan) -> None:
    """Remove the throttles of all brokers and of the topics of a plan."""
    client.metadata([])
    brokers = sorted({*client.nodes, *(broker for _, replicas in plan.partitions for broker in replicas)})
    topics = sorted({topic for (topic, _), _ in plan.partitions})
    say(f"Clearing broker-level throttles on broker{_s(brokers)} {joined(brokers)}")
    rates = dict.fromkeys((*_RATES, _DIRECTORY_RATE))
    _configure(client, BROKER_RESOURCE, dict.fromkeys(brokers, rates))
    say(f"Clearing topic-level throttles on topic{_s(topics)} {joined(topics)}")
    _configure(client, TOPIC_RESOURCE, dict.fromkeys(topics, dict.fromkeys(_THROTTLED)))


def _configure(client: Cluster, kind: int, values: Mapping[Any, Mapping[str, str | None]]) -> None:
    """Set settings of resources, and unset those whose value is None. Raises CommandFailed for the first error."""
    for name, settings in values.items():
        changes = [
            AlterableConfig(name=key, config_operation=DELETE if value is None else SET, value=value)
            for key, value in settings.items()
        ]
        resource = AlterConfigsResource(resource_type=kind, resource_name=str(name), configs=changes)
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        # A broker of Apache Kafka changes only its own settings.
        (answer,) = client.ask(request, name if kind == BROKER_RESOURCE else None).responses
        if answer.error_code:
            raise CommandFailed(explain_code(answer.error_code, answer.error_message))


def _s(counted: Sequence[object] | Mapping[Any, object]) -> str:
    return "" if len(counted) == 1 else "s"
