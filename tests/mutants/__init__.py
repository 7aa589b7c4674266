"""Defects that prove that the simulator finds bugs, grouped by what is damaged.

    python -m kbroker.testing.simulate --mutant ack-before-isr --seed 6    run a plan with one
    python -m tests.mutants ack-before-isr                                 search the seeds that find it

docs/simulation.md lists which seed and which check finds each mutant.
"""

from __future__ import annotations

from typing import Final

from tests.mutants.cleaning import CLEANING
from tests.mutants.groups import GROUPS
from tests.mutants.replication import REPLICATION
from tests.mutants.storage import STORAGE
from tests.mutants.tier import TIER
from tests.mutants.transactions import TRANSACTIONS

MUTANTS: Final = {one.name: one for one in (*REPLICATION, *STORAGE, *CLEANING, *GROUPS, *TIER, *TRANSACTIONS)}
