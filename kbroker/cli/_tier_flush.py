"""`kbroker tier flush`: copy all current records of a topic to the tier.

The broker copies only closed segments, so the last records of an idle topic would stay local until the active segment
is full or old. The topic setting `kbroker.remote.flush.timestamp.ms`, which only kbroker has, makes the broker close
and copy now what was appended before that time. The setting stays and does not affect later records.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from kbroker.cli import CommandFailed
from kbroker.cli import _configs as configs
from kbroker.cli._admin import admin_client
from kbroker.cli._groups import led_partitions, log_offsets
from kbroker.cli._say import say_json
from kbroker.cli._table import print_rows
from kbroker.cli._tier_why import broker_state
from kbroker.client.operations import EARLIEST, LATEST, LATEST_TIERED
from kbroker.runtime.clocks import RealClocks

if TYPE_CHECKING:
    from kbroker.client.cluster import Cluster
    from kbroker.tiered.catalogue import Partition

KEY: Final = "kbroker.remote.flush.timestamp.ms"
COLUMNS: Final = ("TOPIC", "PARTITION", "HIGH-WATERMARK", "TIERED-TO", "DONE")


class Reached(NamedTuple):
    """The progress of the tier in a partition; the goal is to copy the offsets below `goal`."""

    goal: int
    tiered: int
    is_done: bool


def flush(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    """Request the copy and wait. Raises CommandFailed if it takes too long."""
    del parser
    topic: str = options.topic
    env = RealClocks()
    with admin_client(options) as client:
        entity = configs.Entity("topics", topic)
        known = {each.name: each.value for each in configs.describe(client, entity, all_of_them=True)}
        _check(topic, known)
        partitions = sorted(led_partitions(client, [topic]))
        goals = log_offsets(client, partitions, LATEST)
        if missing := [f"{name}-{index}" for name, index in partitions if (name, index) not in goals]:
            raise CommandFailed(f"{', '.join(missing)} has no leader")
        _ask(client, entity, _moment(env, known))
        if options.no_wait:
            return 0
        deadline = env.now_ms() + options.timeout_ms
        reached = _reached(client, goals)
        while not all(one.is_done for one in reached.values()) and env.now_ms() < deadline:
            client.wait(client.retry_ms)
            reached = _reached(client, goals)
    _print(reached, options.format)
    behind = [f"{name}-{index}" for (name, index), one in reached.items() if not one.is_done]
    if behind:
        raise CommandFailed(
            f"{', '.join(behind)} not in the tier within {options.timeout_ms} ms; the broker continues to copy. "
            + (_errors(options.http, reached) if options.http else "--http HOST:PORT of its leader shows why")
        )
    return 0


def _errors(http: str, reached: Mapping[Partition, Reached]) -> str:
    """The last errors of the tier of the partitions that are behind, from the pages of a broker that leads them."""
    errors = {
        each: (state[each].get("remote") or {}).get("last_error")
        for state in [broker_state(http)]
        for each, one in reached.items()
        if not one.is_done and each in state
    }
    found = [f"{topic}-{index}: {error}" for (topic, index), error in errors.items() if error]
    return f"Its last error: {'; '.join(found)}" if found else "There was no error so far"


def _check(topic: str, known: Mapping[str, str | None]) -> None:
    """Raise CommandFailed if the broker would never copy anything."""
    if known.get("remote.storage.enable") != "true":
        raise CommandFailed(f"topic {topic!r} is not tiered: its setting remote.storage.enable is not true")
    if known.get("remote.log.copy.disable") == "true":
        raise CommandFailed(f"topic {topic!r} is not copied: its setting remote.log.copy.disable is true")


def _ask(client: Cluster, entity: configs.Entity, moment_ms: int) -> None:
    try:
        configs.alter(client, entity, added={KEY: str(moment_ms)}, deleted=())
    except CommandFailed as refusal:
        if KEY not in str(refusal):
            raise
        raise CommandFailed(
            "only closed segments are copied, and this broker cannot close them on demand; segment.ms and "
            f"segment.bytes determine when they are closed ({refusal})"
        ) from refusal


def _moment(env: RealClocks, known: Mapping[str, str | None]) -> int:
    """The current time, but later than the previous value, because an unchanged setting has no effect."""
    before = known.get(KEY)
    return max(env.timestamp_ms(), int(before or "-1") + 1)


def _reached(client: Cluster, goals: Mapping[Partition, int]) -> dict[Partition, Reached]:
    """The progress of each partition. Offsets below the log start offset need not be copied."""
    tiered = log_offsets(client, goals, LATEST_TIERED)
    starts = log_offsets(client, goals, EARLIEST)
    return {
        each: Reached(goal, tiered.get(each, -1), max(tiered.get(each, -1), starts.get(each, 0) - 1) >= goal - 1)
        for each, goal in goals.items()
    }


def _print(reached: Mapping[Partition, Reached], how: str) -> None:
    if how == "json":
        for (topic, index), one in reached.items():
            fields = {"topic": topic, "partition": index, "high_watermark": one.goal}
            say_json({**fields, "highest_offset_in_remote_storage": one.tiered, "is_done": one.is_done})
        return
    rows = [(*each, one.goal, one.tiered, "yes" if one.is_done else "no") for each, one in reached.items()]
    print_rows(COLUMNS, rows)
