"""Mutants of the log cleaner."""

from __future__ import annotations

from typing import Final

from kbroker.testing.mutants import Mutant, Patch

_BATCHES: Final = "kbroker.storage.cleaning_batches"

CLEANING: Final = (
    Mutant(
        "tombstones-go-at-once",
        "A pass removes tombstones that it meets for the first time, so a follower that was away keeps the value.",
        ("K1", "K3"),
        (
            Patch(
                _BATCHES,
                "        tombstones = 0 if is_over else flags.count(IS_LAST | IS_TOMBSTONE)\n",
                "        tombstones = 0\n",
            ),
        ),
    ),
    Mutant(
        "cleaned-batches-lose-their-epoch",
        "A batch that a pass has made smaller has leader epoch 0.",
        ("K7",),
        (
            Patch(
                _BATCHES,
                "        batch.partition_leader_epoch,\n",
                "        0,\n",
            ),
        ),
    ),
    Mutant(
        "older-value-kept",
        "A pass keeps the first record of each key in the dirty part, not the last one.",
        ("K1", "K3"),
        (
            Patch(
                "kbroker.storage.cleaning_map",
                "                known[key] = number\n",
                "                known.setdefault(key, number)\n",
            ),
        ),
    ),
)
