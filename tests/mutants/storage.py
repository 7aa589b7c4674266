"""Mutants of logs, producers' state and the metadata log."""

from __future__ import annotations

from typing import Final

from kbroker.testing.mutants import Mutant, Patch

_LOADER: Final = "kbroker.storage.loader"
_LOG_FILES: Final = "kbroker.storage.log_files"
_PRODUCERS: Final = "kbroker.storage.producer_state"
_SEGMENTED: Final = "kbroker.storage.segmented_log"

STORAGE: Final = (
    Mutant(
        "no-directory-sync-after-roll",
        "A roll does not make the names of the new segment durable.",
        ("K1", "K8"),
        (
            Patch(
                _LOG_FILES,
                "sync_names(self.disk, self.directory)\n        self.has_unsynced_names = True\n        segment =",
                "pass\n        self.has_unsynced_names = False\n        segment =",
            ),
        ),
    ),
    Mutant(
        "fsync-is-retried",
        "A failed fsync is repeated, and its second success counts although the data are lost.",
        ("K1", "K11", "K12"),
        (
            Patch(
                "kbroker.storage.durable",
                "        raise SyncFailed(error.errno, error.strerror, file.path) from error\n",
                "        try:\n            file.sync()\n        except OSError:\n"
                "            raise SyncFailed(error.errno, error.strerror, file.path) from error\n",
            ),
        ),
    ),
    Mutant(
        "one-batch-remembered",
        "The broker recognizes a retry only of a producer's last batch, not of its last five.",
        ("K1", "K4"),
        (Patch(_PRODUCERS, "REMEMBERED_BATCHES: Final = 5\n", "REMEMBERED_BATCHES: Final = 1\n"),),
    ),
    Mutant(
        "gaps-in-sequences-accepted",
        "The broker appends a batch whose sequence does not follow the producer's last one.",
        ("K3", "K4"),
        (
            Patch(
                _PRODUCERS,
                "        if not is_next:\n",
                "        if False:\n",
            ),
        ),
    ),
    Mutant(
        "producers-forgotten-at-start",
        "A restarted broker does not know the sequences of its producers.",
        ("K4",),
        (
            Patch(
                _LOADER,
                "        files.producers.expire(timestamp_ms, config.producer_id_expiration_ms)\n",
                "        files.producers.clear(log_end_offset)\n",
            ),
        ),
    ),
    Mutant(
        "producer-snapshot-ignored",
        "After a restart the broker knows only the producers of the batches after the newest snapshot.",
        ("K4",),
        (
            Patch(
                _LOG_FILES, "            producers.restore(offset, entries)\n", "            producers.clear(offset)\n"
            ),
        ),
    ),
    Mutant(
        "followers-learn-no-producers",
        "A follower does not record the producers of the batches that it copies.",
        ("K4",),
        (
            Patch(
                "kbroker.broker.appending",
                "            if not (plan.rolls or plan.syncs):\n"
                "                self._write_large(log, plan)\n"
                "                log.commit(plan)\n"
                "                return\n",
                "            if not (plan.rolls or plan.syncs):\n"
                "                self._write_large(log, plan)\n"
                "                log.commit(plan)\n"
                "                log.producers.clear(log.log_end_offset)\n"
                "                return\n",
            ),
        ),
    ),
    Mutant(
        "truncation-keeps-producers",
        "After a truncation the log remembers batches that it no longer has, so a retry of one is acknowledged.",
        ("K1", "K4"),
        (
            Patch(
                _SEGMENTED,
                "            self.files.load_producers(self.producers, self.files.snapshots, self.log_end_offset)\n",
                "",
            ),
        ),
    ),
    Mutant(
        "truncation-keeps-epochs",
        "A truncation leaves the leader epochs of the records that it removes.",
        ("K7",),
        (
            Patch(
                _LOG_FILES,
                "        self.leader_epochs.truncate_from_end(offset)\n        self.write_epochs()\n        remaining",
                "        remaining",
            ),
        ),
    ),
    Mutant(
        "recovery-skips-checksums",
        "Recovery after a loss of power keeps batches with a wrong checksum at the end of the log.",
        ("K6", "K12"),
        (
            Patch(
                "kbroker.storage.segment_recovery",
                "            if found != crc:\n",
                "            if False:\n",
            ),
        ),
    ),
    Mutant(
        "clock-jump-deletes",
        "Deletion by age believes a wall clock that was just set ahead.",
        ("K1", "K10"),
        (
            Patch(
                "kbroker.runtime.cautious_clock",
                "        return min(clock.now_ms() + self._trusted, wall_ms - clock.ahead_ms)\n",
                "        return wall_ms - clock.ahead_ms\n",
            ),
        ),
    ),
    Mutant(
        "metadata-snapshot-not-synced",
        "A snapshot of the metadata log replaces the log before it is durable.",
        ("K8", "K11"),
        (
            Patch(
                "kbroker.controller.snapshots",
                "        file.pwrite(data, position)\n        file.sync()\n",
                "        file.pwrite(data, position)\n",
            ),
        ),
    ),
    Mutant(
        "controller-answers-before-sync",
        "The controller answers before its records are durable, so a loss of power takes back what it has decided.",
        ("K8", "K11"),
        (
            Patch(
                "kbroker.controller.metadata_log",
                "            self.reserve.spend_on(append)\n            self.reserve.spend_on(self._log.flush)\n",
                "            self.reserve.spend_on(append)\n",
            ),
        ),
    ),
)
