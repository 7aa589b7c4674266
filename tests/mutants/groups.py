"""Mutants of groups and their offsets."""

from __future__ import annotations

from typing import Final

from kbroker.testing.mutants import Mutant, Patch

_COMMITTING: Final = "kbroker.coordinator.committing"
_RUNTIME: Final = "kbroker.coordinator.common.runtime"
_SHARD: Final = "kbroker.coordinator.shard"

GROUPS: Final = (
    Mutant(
        "commit-answered-before-replication",
        "A coordinator answers before the in-sync replicas have its records.",
        ("K10",),
        (
            Patch(
                _RUNTIME,
                "code = ErrorCode.NONE if end_offset is None else await self._await_outcome(led, end_offset)",
                "code = ErrorCode.NONE",
            ),
        ),
    ),
    Mutant(
        "groups-lost-on-load",
        "A coordinator that takes over a partition does not load its groups, so generations begin again.",
        ("K10",),
        (
            Patch(
                _SHARD,
                "rebalance.restore_group(self._context, record.key_message.group, record.value_message)",
                "pass",
            ),
        ),
    ),
    Mutant(
        "offsets-lost-on-load",
        "A coordinator that takes over a partition does not load the committed offsets.",
        ("K10",),
        (
            Patch(
                _SHARD,
                "self._replay_offset(record, offset, producer_id)",
                "pass",
            ),
        ),
    ),
    Mutant(
        "tombstones-ignored-on-load",
        "A coordinator that takes over a partition ignores the tombstones of offsets.",
        ("K10",),
        (
            Patch(
                "kbroker.coordinator.common.loading",
                "self._apply(key, value, offset, producer_id)\n",
                "value is not None and self._apply(key, value, offset, producer_id)\n",
            ),
        ),
    ),
    Mutant(
        "two-owners",
        "Every member of a group gets the assignment of the group's leader.",
        ("K10",),
        (
            Patch(
                "kbroker.coordinator.rebalance",
                "assignments.get(member.member_id, EMPTY_ASSIGNMENT)",
                "assignments.get(group.leader_id or '', EMPTY_ASSIGNMENT)",
            ),
        ),
    ),
    Mutant(
        "old-generation-commits",
        "A member that is still in an old generation may commit offsets.",
        ("K10",),
        (
            Patch(
                _COMMITTING,
                "    member = group.validate_member(request.member_id, request.group_instance_id)\n"
                "    if generation_id != group.generation_id:\n",
                "    member = group.validate_member(request.member_id, request.group_instance_id)\n    if False:\n",
            ),
            Patch(
                _COMMITTING,
                "    if group.state is COMPLETING_REBALANCE:\n",
                "    if group.state is COMPLETING_REBALANCE and generation_id == group.generation_id:\n",
            ),
        ),
    ),
    Mutant(
        "uncommitted-offsets-shown",
        "OffsetFetch answers from records that the in-sync replicas do not have yet.",
        ("K10",),
        (
            Patch(
                _RUNTIME,
                "ends = {led: led.partition.log.log_end_offset for led in read}",
                "ends = {led: 0 for led in read}",
            ),
        ),
    ),
    Mutant(
        "given-before-released",
        "A member of a KIP-848 group gets a partition that another member still owns.",
        ("K10",),
        (
            Patch(
                "kbroker.coordinator.consumer.reconciling",
                "            if group.is_owned(topic_id, partition) and partition not in own:\n",
                "            if False:\n",
            ),
        ),
    ),
    Mutant(
        "old-epoch-commits",
        "A member of a KIP-848 group may commit with an old epoch for a partition that it has lost.",
        ("K10",),
        (
            Patch(
                "kbroker.coordinator.consumer.offsets",
                "        if since is None or epoch < since:\n",
                "        if False:\n",
            ),
        ),
    ),
)
