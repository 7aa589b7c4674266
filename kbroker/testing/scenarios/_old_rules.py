"""The rules of earlier Kafkas, as mutants."""

from __future__ import annotations

from typing import Final

from kbroker.testing.mutants import Mutant, Patch

_FETCHERS: Final = "kbroker.broker.fetchers"
_FOLLOWER: Final = "kbroker.replication.follower"
_FOLLOWER_LOGS: Final = "kbroker.broker.follower_logs"
_STATE: Final = "kbroker.replication.partition_state"

POSITION: Final = "position = (log.log_end_offset, log.leader_epochs.latest, log.log_start_offset)"
"""What a follower tells its leader, in kbroker.replication.follower."""

TRUNCATE_BY_HIGH_WATERMARK: Final = Mutant(
    "truncate-by-hw",
    "The rule of Kafka before KIP-101: a follower of a new leader truncates to its own high watermark, a restarted"
    " one to its checkpoint, and no leader epochs are compared.",
    ("K1", "K2", "K7"),
    (
        Patch(_FOLLOWER, POSITION, "position = (log.log_end_offset, -1, log.log_start_offset)"),
        Patch(
            _STATE,
            "    key: TopicPartition = field(init=False)\n",
            "    key: TopicPartition = field(init=False)\n    truncated_for: int = field(default=-1, init=False)\n",
        ),
        Patch(_STATE, "        self.role = Role.LEADER\n", "        self.role, self.truncated_for = Role.LEADER, -1\n"),
        Patch(
            _FETCHERS,
            "                connection = await self._connect()\n",
            "                await self._truncate_to_high_watermarks()\n"
            "                connection = await self._connect()\n",
        ),
        Patch(
            _FETCHERS,
            "            settings = broker.settings.replication\n            limits",
            "            await self._truncate_to_high_watermarks()\n"
            "            settings = broker.settings.replication\n            limits",
        ),
        Patch(
            _FETCHERS,
            "    def _wake(self) -> None:\n",
            "    async def _truncate_to_high_watermarks(self) -> None:\n"
            "        for followed in list(self.fetcher.partitions.values()):\n"
            "            partition = followed.partition\n"
            "            if followed.is_current and partition.truncated_for != partition.leader:\n"
            "                partition.truncated_for = partition.leader\n"
            "                end = partition.known_high_watermark\n"
            "                await self._logs._truncate_to(followed, end, 'the high watermark')\n\n"
            "    def _wake(self) -> None:\n",
        ),
    ),
)

COMPARE_IN_ONE_STEP: Final = Mutant(
    "kip-101-in-one-step",
    "The rule of KIP-101 before KIP-279: a follower truncates once, to the end that the leader names, even if it"
    " does not have the leader's epoch, and compares no more.",
    ("K2", "K6", "K7"),
    (
        Patch(
            _FOLLOWER,
            "    known_epoch, own_end_offset = epochs.end_offset_for(leaders_epoch, log_end_offset)\n"
            "    if known_epoch == UNDEFINED_EPOCH:\n",
            "    known_epoch, own_end_offset = leaders_epoch, log_end_offset\n    if known_epoch == UNDEFINED_EPOCH:\n",
        ),
        Patch(
            _FOLLOWER,
            "    is_dropped: bool = field(default=False, init=False)\n",
            "    is_dropped: bool = field(default=False, init=False)\n    has_compared: bool = False\n",
        ),
        Patch(
            _FOLLOWER,
            POSITION,
            "epoch = -1 if self.has_compared else log.leader_epochs.latest\n"
            "        position = (log.log_end_offset, epoch, log.log_start_offset)",
        ),
        Patch(
            _FOLLOWER_LOGS,
            "        assert diverging is not None\n",
            "        assert diverging is not None\n        followed.has_compared = True\n",
        ),
    ),
)

COMMIT_BELOW_MIN_ISR: Final = Mutant(
    "hw-rises-below-min-isr",
    "The rule of Kafka before KIP-966: the high watermark counts only the members of the ISR, however few.",
    ("K6",),
    (
        Patch(
            "kbroker.replication.leader",
            "            if len(self.isr) < min(self.min_insync_replicas, len(followers) + 1):\n"
            "                return False\n",
            "",
        ),
    ),
)
