"""Plans of other lengths than the drawn ones: small ones for CI, and calm ones.

Calm plans are clusters that run for hours, like those of users: long calm times with few records, and now and then
faults.

The topology, topics and settings are those of the seed's ordinary plan. Its clients work more slowly, the periodic
tasks run at long intervals, and every few minutes a burst of faults comes. So an hour costs a fraction of the
processor time, and what needs hours is reached: expiry, snapshots, long idle times, many elections in one log.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kbroker.testing.drawing import LONGEST_MS, abilities, drawn_acts, drawn_plan
from kbroker.testing.plan import Act, Plan

CALM_MS: Final = 2 * 3_600_000
_BURST_EACH_MS: Final = 600_000
_BURST_MS: Final = 60_000
_SLOWER: Final = 100
_LONGEST_PAUSE_MS: Final = 20_000
"""Partitions must become writable within a minute after the last fault, so producers must send in that minute."""
_SMALLER: Final = 10
_SHORTER: Final = 6
_RARER_LOOKS: Final = 4
_LOOK_EACH_MS: Final = 2_000
_SETTINGS: Final = {
    "broker.heartbeat.interval.ms": 2_000,
    "broker.session.timeout.ms": 9_000,
    "metadata.max.idle.interval.ms": 5_000,
    "replica.fetch.wait.max.ms": 5_000,
    "replica.lag.time.max.ms": 20_000,
    "replica.high.watermark.checkpoint.interval.ms": 5_000,
    "remote.log.manager.task.interval.ms": 10_000,
    "log.retention.check.interval.ms": 10_000,
    "log.cleaner.backoff.ms": 15_000,
    "offsets.retention.check.interval.ms": 60_000,
    "unclean.leader.election.interval.ms": 10_000,
}


def small_plan(seed: int) -> Plan:
    """The plan of a seed in a tenth of the time: its faults come closer together and end earlier, and the invariants
    are looked at less often. Most of the run is the recovery after the faults.
    """
    plan = drawn_plan(seed)
    acts = tuple(
        replace(act, at_ms=act.at_ms // _SMALLER, for_ms=max(100, act.for_ms // _SHORTER)) for act in plan.acts
    )
    return replace(
        plan, duration_ms=plan.duration_ms // _SMALLER, look_each_ms=_RARER_LOOKS * plan.look_each_ms, acts=acts
    )


def calm_plan(seed: int, *, duration_ms: int = CALM_MS) -> Plan:
    """The calm plan of a seed. Its first burst begins after the first few minutes."""
    plan = drawn_plan(seed)
    able = abilities(plan.topics, plan.settings)
    acts: list[Act] = []
    for burst, began_ms in enumerate(range(_BURST_EACH_MS // 2, duration_ms - _BURST_MS - LONGEST_MS, _BURST_EACH_MS)):
        drawn = drawn_acts(seed, "burst", burst, brokers=plan.brokers, duration_ms=_BURST_MS, able=able)
        acts += [replace(act, at_ms=act.at_ms + began_ms) for act in drawn]
    work = plan.workload
    return replace(
        plan,
        duration_ms=duration_ms,
        settings={**plan.settings, **_SETTINGS},
        workload=replace(
            work,
            producers=tuple(replace(one, pause_ms=_slower(one.pause_ms)) for one in work.producers),
            # They give up a batch only in plans with a fault that makes it late.
            transactions=tuple(
                replace(one, pause_ms=_slower(one.pause_ms), patience_ms=None) for one in work.transactions
            ),
            readers=tuple(replace(one, pause_ms=max(5_000, _slower(one.pause_ms))) for one in work.readers),
            groups=tuple(replace(one, commit_every_ms=one.commit_every_ms * _SLOWER) for one in work.groups),
            deleters=tuple(replace(one, every_ms=one.every_ms * _SLOWER) for one in work.deleters),
        ),
        acts=tuple(acts),
        look_each_ms=_LOOK_EACH_MS,
    )


def _slower(pause_ms: int) -> int:
    return min(pause_ms * _SLOWER, _LONGEST_PAUSE_MS)
