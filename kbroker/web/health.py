"""Liveness and readiness of the node.

A node is alive if it responds within a timeout. It is ready if it accepts connections, has applied all metadata, has a
working data directory, and has loaded its groups and the tier's metadata. A node that is not ready lists all problems.
"""

from __future__ import annotations

import json
from heapq import nsmallest
from typing import Any, Final

from kbroker import __version__
from kbroker.broker import Broker
from kbroker.coordinator.common.led import State
from kbroker.web.groups import count
from kbroker.web.http import Reply
from kbroker.web.ports import Observed

JSON = "application/json"
MOST_NAMED: Final = 10
_OK, _UNAVAILABLE = 200, 503


def live(node: Observed) -> Reply:
    """The liveness page: the event loop runs."""
    return _reply(_OK, {"status": "alive", "node_id": node.settings.node_id, "version": __version__})


def alive() -> Reply:
    """The liveness page without details."""
    return _reply(_OK, {"status": "alive"})


def ready(node: Observed) -> Reply:
    """The readiness page: whether the node can serve clients."""
    wrong = problems(node)
    body: dict[str, Any] = {
        "status": "not ready" if wrong else "ready",
        "problems": wrong,
        "warnings": [] if node.broker is None else warnings(node.broker),
        "node_id": node.settings.node_id,
        "version": __version__,
    }
    if node.recovery.is_running:
        body["recovery"] = node.recovery.fields()
    if node.broker is not None:
        body |= {"cluster_id": node.broker.cluster_id, "metadata_offset": node.broker.image.offset}
    return _reply(_UNAVAILABLE if wrong else _OK, body)


def status_only(node: Observed) -> Reply:
    """The readiness page without details: problems and warnings name topics and paths, and finding the latter looks at
    every partition.
    """
    return _reply(_UNAVAILABLE, {"status": "not ready"}) if problems(node) else _reply(_OK, {"status": "ready"})


def problems(node: Observed) -> list[str]:
    """The reasons why this node is not ready; empty if it is ready."""
    broker = node.broker
    found = []
    if node.is_stopping:
        found.append("the node is stopping")
    elif (recovery := node.recovery).is_running:
        found.append(
            f"the node is recovering logs after an unclean shutdown: {recovery.recovered_logs} of {recovery.logs} logs "
            f"are recovered, {recovery.recovered_bytes >> 20} of {recovery.size_bytes >> 20} MiB"
        )
    elif not node.is_serving:
        doing = "is loading metadata and logs" if broker is None else "is not registered yet"
        found.append(f"the node is starting: it {doing}")
    if broker is not None:
        failure = broker.replicas.directory.state.failure
        if failure is not None:
            found.append(f"the data directory {broker.replicas.directory.path} has failed: {failure}")
        registered = broker.image.brokers.get(broker.node_id)
        if node.is_serving and not node.is_stopping and (registered is None or registered.fenced):
            found.append("the controller has fenced this broker")
        if loading := count(broker, State.LOADING):
            found.append(f"{loading} partitions of __consumer_offsets are being loaded")
        if loading := sum(led.state is State.LOADING for led in broker.transactions.led.values()):
            found.append(f"{loading} partitions of __transaction_state are being loaded")
        if broker.tier.waits_for:
            found.append(f"tiered topics: {broker.tier.waits_for}")
    return found


def warnings(broker: Broker) -> list[str]:
    """Conditions that an operator should check, although the node serves clients."""
    replicas = broker.replicas
    failed_logs = nsmallest(MOST_NAMED, replicas.failed)
    found = [f"the log of {topic}-{index} could not be opened" for topic, index in failed_logs]
    if more := len(replicas.failed) - len(failed_logs):
        found.append(f"{more} more logs could not be opened")
    if failed := count(broker, State.FAILED):
        found.append(f"{failed} partitions of __consumer_offsets could not be loaded: their groups are not served")
    if failed := sum(led.state is State.FAILED for led in broker.transactions.led.values()):
        found.append(f"{failed} partitions of __transaction_state could not be loaded: their ids are not served")
    for coordinator in (broker.groups, broker.transactions):
        if unreadable := [led for led in coordinator.led.values() if led.unreadable_records]:
            count_of_all, first = sum(led.unreadable_records for led in unreadable), unreadable[0]
            found.append(
                f"{count_of_all} records of {coordinator.runtime.kind.topic} cannot be read and were skipped,"
                f" the first in {first.partition.name} at offset {first.first_unreadable}"
            )
    if uncleanable := broker.cleaner.uncleanable:
        log, why = next(iter(uncleanable.items()))
        found.append(f"{len(uncleanable)} logs cannot be compacted, such as {log.topic}-{log.partition}: {why}")
    if broker.controller.active_id < 0:
        found.append("no controller answers: requests that change the cluster fail")
    if replicas.directory.state.is_short_of_space:
        found.append("the disk is nearly full: the broker refuses records")
    if strays := replicas.directory.stray_count:
        found.append(f"{strays} stray directories hold partitions that the metadata does not list")
    if (manager := broker.tier.manager) is not None:
        if manager.unknown_partitions:
            found.append(f"the tier holds {manager.unknown_partitions} partitions that the metadata does not list")
        if manager.has_wrong_store:
            found.append("the tier's store has none of the segments that the metadata lists: check its settings")
    tiered = [one.remote for one in tuple(replicas.partitions.values()) if one.remote is not None]
    if troubled := [remote.last_error for remote in tiered if remote.last_error]:
        found.append(f"tier operations fail for {len(troubled)} partitions and are retried: {troubled[0]}")
    return found


def _reply(status: int, body: dict[str, Any]) -> Reply:
    return Reply(status, JSON, (json.dumps(body, indent=2).encode() + b"\n",))
