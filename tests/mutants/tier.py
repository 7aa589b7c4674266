"""Mutants of the tier: copying, expiring, followers that are built from it, and local retention."""

from __future__ import annotations

from typing import Final

from kbroker.testing.mutants import Mutant, Patch

_COPYING: Final = "kbroker.tiered.copying"
_PLAN: Final = "kbroker.tiered.plan"

TIER: Final = (
    Mutant(
        "local-delete-before-finished",
        "A segment may be deleted locally as soon as its copy has begun.",
        ("K1", "K9"),
        (
            Patch(
                _COPYING,
                "        held.unfinished.add(metadata.remote_log_segment_id)\n        with plugin_errors",
                "        held.unfinished.add(metadata.remote_log_segment_id)\n"
                "        held.note_copied(metadata.end_offset)\n        with plugin_errors",
            ),
        ),
    ),
    Mutant(
        "unfinished-copies-count",
        "Retention of the tier counts the bytes of copies that are not finished.",
        ("K1",),
        (
            Patch(
                _PLAN,
                "if one.end_offset > end and one.state is FINISHED and one in lineage:",
                "if one.end_offset > end and one.state is not DELETING and one in lineage:",
            ),
        ),
    ),
    Mutant(
        "objects-are-the-authority",
        "A segment counts as copied once its objects may exist, without the record that says so.",
        ("K1", "K9", "K11"),
        (
            Patch(
                "kbroker.tiered.lifecycle",
                "        is_finished = metadata.state is FINISHED\n",
                "        is_finished = metadata.state in (STARTED, FINISHED)\n",
            ),
            Patch(_PLAN, "(one for one in segments if one.state is FINISHED)", "segments"),
        ),
    ),
    Mutant(
        "lineage-ignored",
        "Segments of a diverged history count as part of the log.",
        ("K7", "K9"),
        (
            Patch(
                _PLAN,
                "        if not entries or segment.end_offset >= self.log_end_offset:\n            return False\n",
                "        return True\n",
            ),
            Patch(_PLAN, "            return min(highest, end_offset - 1)\n", "            return highest\n"),
        ),
    ),
    Mutant(
        "auxiliary-state-skipped",
        "A follower that is built from the tier gets neither the leader epochs nor the producers of its past.",
        ("K1", "K4", "K7", "K9"),
        (
            Patch(
                "kbroker.broker.tier_followers",
                "                epochs=state.leader_epochs,\n                producers=state.producers,\n",
                "",
            ),
        ),
    ),
    Mutant(
        "segment-ends-too-late",
        "The metadata of a copied segment name an end offset that is one too high.",
        ("K9", "K11"),
        (
            Patch(
                _COPYING,
                "        end_offset=sealed.next_offset - 1,\n",
                "        end_offset=sealed.next_offset,\n",
            ),
        ),
    ),
    Mutant(
        "uncommitted-records-copied",
        "The leader copies segments whose records the in-sync replicas do not have yet.",
        ("K9",),
        (
            Patch(
                _PLAN,
                "        if from_offset < following.base_offset <= last_stable_offset and segment.size\n",
                "        if from_offset < following.base_offset and segment.size\n",
            ),
        ),
    ),
    Mutant(
        "followers-delete-from-the-tier",
        "A follower runs the copying and expiry of the leader too.",
        ("K9",),
        (
            Patch(
                "kbroker.tiered.partition_tasks",
                "        if not partition.is_leader:\n",
                "        if False:\n",
            ),
        ),
    ),
    Mutant(
        "leftovers-not-deleted",
        "A broker forgets its unfinished copies when it restarts, so their objects are never deleted.",
        ("K9",),
        (
            Patch(
                "kbroker.tiered.expiring",
                "return one.broker_id == tools.broker_id or timestamp_ms - one.event_timestamp_ms > HORIZON_MS",
                "return False",
            ),
            Patch(
                "kbroker.tiered.partition_tasks",
                "            find_unfinished(tools, held)\n",
                "            pass\n",
            ),
        ),
    ),
)
