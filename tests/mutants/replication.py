"""Mutants of replication: acknowledgements, high watermarks, leader epochs, ISRs and elections."""

from __future__ import annotations

from typing import Final

from kbroker.testing.mutants import Mutant, Patch
from kbroker.testing.scenarios._old_rules import COMPARE_IN_ONE_STEP, POSITION, TRUNCATE_BY_HIGH_WATERMARK

_APPENDING: Final = "kbroker.broker.appending"
_FOLLOWER: Final = "kbroker.replication.follower"
_ISR: Final = "kbroker.replication.isr"
_LEADER: Final = "kbroker.replication.leader"
_PARTITION: Final = "kbroker.replication.partition"
_STATE: Final = "kbroker.replication.partition_state"

REPLICATION: Final = (
    Mutant(
        "always-fails",
        "Every Produce is answered with the offset after the real one: proves that findings are reported.",
        ("K1", "K2", "K4"),
        (
            Patch(
                "kbroker.handlers.produce", "base_offset=appended.base_offset,", "base_offset=appended.base_offset + 1,"
            ),
        ),
    ),
    Mutant(
        "ack-before-isr",
        "The leader acknowledges acks=all without waiting for the in-sync replicas.",
        ("K1",),
        (
            Patch(
                _APPENDING,
                "        if progress.high_watermark < self.next_offset:\n            return None\n",
                "",
            ),
        ),
    ),
    TRUNCATE_BY_HIGH_WATERMARK,
    COMPARE_IN_ONE_STEP,
    Mutant(
        "no-comparison-of-epochs",
        "A follower does not tell the leader the epoch of its last record, so it never learns that its log diverges.",
        ("K2", "K6", "K7"),
        (Patch(_FOLLOWER, POSITION, "position = (log.log_end_offset, -1, log.log_start_offset)"),),
    ),
    Mutant(
        "fetch-without-leader-epoch",
        "A follower fetches without the leader epoch that it knows, and the leader counts it whatever its epoch is.",
        ("K6",),
        (
            Patch(
                _FOLLOWER,
                "        current_leader_epoch=followed.leader_epoch,\n        fetch_offset",
                "        current_leader_epoch=-1,\n        fetch_offset",
            ),
        ),
    ),
    Mutant(
        "stale-leader-serves",
        "A broker that loses a leadership goes on answering as the leader.",
        ("K1", "K6", "K7", "K11"),
        (
            Patch(
                _STATE,
                "            self.role = Role.FOLLOWER\n            return self._stop_leading()\n",
                "            self.role = Role.FOLLOWER\n            return False\n",
            ),
        ),
    ),
    Mutant(
        "deposed-leader-acknowledges",
        "A Produce that waits when its leader is deposed is acknowledged later, if that broker leads again.",
        ("K1", "K11"),
        (
            Patch(
                _APPENDING,
                "        if progress is None or partition.leader_epoch != self.leader_epoch:\n"
                "            return ErrorCode.NOT_LEADER_OR_FOLLOWER\n",
                "        if progress is None:\n            return None\n",
            ),
        ),
    ),
    Mutant(
        "hw-regresses-on-leader-start",
        "A new leader begins with the log start offset as its high watermark.",
        ("K6",),
        (
            Patch(
                _STATE,
                "            high_watermark=min(max(self._known_high_watermark, self.log.log_start_offset), end),\n",
                "            high_watermark=min(self.log.log_start_offset, end),\n",
            ),
        ),
    ),
    Mutant(
        "hw-off-by-one",
        "The leader counts a follower's fetch offset as a record that the follower already has.",
        ("K1", "K3", "K6"),
        (
            Patch(
                _LEADER,
                "                    reached = follower.fetch_offset\n",
                "                    reached = follower.fetch_offset + 1\n",
            ),
        ),
    ),
    Mutant(
        "reads-beyond-hw",
        "Consumers read records above the high watermark.",
        ("K2", "K3"),
        (
            Patch(
                _PARTITION,
                "        if reads_to is ReadsTo.HIGH_WATERMARK:\n            return high_watermark\n",
                "        if reads_to is ReadsTo.HIGH_WATERMARK:\n            return self.log.log_end_offset\n",
            ),
        ),
    ),
    Mutant(
        "hw-not-in-sessions",
        "A fetch session does not mention a changed high watermark, so followers learn of it only with new records.",
        ("K1", "K6", "K11"),
        (
            Patch(
                "kbroker.replication.fetch_session",
                "            or answer.high_watermark != partition.sent_high_watermark\n",
                "",
            ),
        ),
    ),
    Mutant(
        "isr-joins-too-early",
        "A follower may join the ISR before it has reached the high watermark.",
        ("K1", "K6"),
        (
            Patch(
                _LEADER,
                "if follower.fetch_offset < self.high_watermark or follower.fetch_offset < self.epoch_start_offset:",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "isr-grows-without-broker-epoch",
        "A fetch of a follower's earlier process counts for the present one (KIP-903).",
        ("K1", "K6"),
        (
            Patch(
                _ISR,
                "        return epoch is not None and fetched_epoch in (NO_BROKER_EPOCH, epoch)\n",
                "        return epoch is not None\n",
            ),
            Patch(
                _LEADER,
                "if broker_epoch != known_epoch and (replica_id not in self.isr or known_epoch != NOT_FETCHED):",
                "if known_epoch != known_epoch:",
            ),
            Patch(
                _LEADER,
                "        return max(NO_BROKER_EPOCH, self.followers[member].broker_epoch)\n",
                "        return NO_BROKER_EPOCH\n",
            ),
            Patch("kbroker.replication.fetching", "            if fetcher.is_stale:\n", "            if False:\n"),
        ),
    ),
    Mutant(
        "isr-shrinks-before-commit",
        "The high watermark ignores a lagging member as soon as its removal is proposed, not when it is committed.",
        ("K1", "K6"),
        (
            Patch(
                _LEADER,
                "self._propose(self.isr.difference(lagging), None)",
                "self.maximal_isr = self.isr.difference(lagging); self._propose(self.maximal_isr, None)",
            ),
        ),
    ),
    Mutant(
        "partition-epoch-not-raised",
        "A change of a partition leaves its partition epoch, so a leader's old proposal is accepted later.",
        ("K1", "K6", "K11"),
        (
            Patch(
                "kbroker.metadata.parts", "        before.partition_epoch + 1,\n", "        before.partition_epoch,\n"
            ),
        ),
    ),
    Mutant(
        "min-isr-ignored",
        "The leader accepts acks=all with fewer in-sync replicas than min.insync.replicas.",
        ("K6",),
        (
            Patch(
                _LEADER,
                "        return len(self.isr) >= min(self.min_insync_replicas, self.replica_count)\n",
                "        return True\n",
            ),
            Patch(
                _LEADER,
                "        return len(self.maximal_isr) >= min(self.min_insync_replicas, self.replica_count)\n",
                "        return True\n",
            ),
            Patch(
                _LEADER,
                "            if len(self.isr) < min(self.min_insync_replicas, len(followers) + 1):\n"
                "                return False\n",
                "",
            ),
        ),
    ),
    Mutant(
        "unclean-without-permission",
        "The controller elects a replica outside of the ISR although unclean.leader.election.enable is false.",
        ("K1", "K3", "K6"),
        (
            Patch(
                "kbroker.controller.election",
                "    if election is Election.UNCLEAN and able:\n",
                "    if able:\n",
            ),
        ),
    ),
    Mutant(
        "elects-fenced-brokers",
        "The controller elects leaders that are fenced.",
        ("K8",),
        (Patch("kbroker.controller.election", "        and broker.active\n", ""),),
    ),
    Mutant(
        "log-start-not-followed",
        "A follower does not take the leader's log start offset, so deleted records return when it leads.",
        ("K1",),
        (
            Patch(
                _STATE,
                "log.raise_log_start_offset(min(log_start_offset, self._known_high_watermark, log.log_end_offset))",
                "pass",
            ),
        ),
    ),
)
