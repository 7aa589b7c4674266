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
)
