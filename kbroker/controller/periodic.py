"""Decisions that the controller asks itself for from time to time (upkeep.py).

Leaders move back to the preferred replicas, partitions without a leader get one where the topic allows an unclean
election, and an idle log gets NoOp records, so that the lag of observers can be seen. As in Kafka's KRaft controllers,
every partition whose preferred replica can lead it is balanced.

Source: Kafka's ReplicationControlManager.maybeBalancePartitionLeaders, maybeElectUncleanLeaders; KIP-835.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from kbroker.controller.context import Context
from kbroker.controller.decisions import decides
from kbroker.controller.election import Election, Place, allowed_election, leaderless, partitions, plan_change
from kbroker.runtime.outcome import Outcome
from wire.stored.metadata import NoOpRecord

MAX_ELECTIONS: Final = 1_000
"""The most elections of one decision; if it reaches them, the controller asks again at once."""


class ElectPreferredLeaders:
    """Elect the preferred replicas that can lead; the response is the number of elections."""


class ElectUncleanLeaders:
    """Elect any live replica for leaderless partitions that allow it; the response is the number of elections."""


class WriteNoOp:
    """Write a record that changes nothing."""


@decides(ElectPreferredLeaders, may_be_long=True)
def elect_preferred_leaders(context: Context, _request: ElectPreferredLeaders) -> Outcome[int]:
    """See ElectPreferredLeaders."""
    places = (place for place in partitions(context.image) if place[2].leader != place[2].replicas[0])
    return _elect(context, places, Election.PREFERRED)


@decides(ElectUncleanLeaders, may_be_long=True)
def elect_unclean_leaders(context: Context, _request: ElectUncleanLeaders) -> Outcome[int]:
    """See ElectUncleanLeaders."""
    places = (
        place for place in leaderless(context.image) if allowed_election(context, place[0].name) is Election.UNCLEAN
    )
    return _elect(context, places, Election.UNCLEAN)


@decides(WriteNoOp, adds=True)
def write_no_op(_context: Context, _request: WriteNoOp) -> Outcome[None]:
    """See WriteNoOp."""
    return Outcome([NoOpRecord()], None)


def _elect(context: Context, places: Iterable[Place], election: Election) -> Outcome[int]:
    records: list[Any] = []
    for topic, index, _ in places:
        record = plan_change(context, topic, index, election=election)
        if record is not None:
            records.append(record)
            if len(records) == MAX_ELECTIONS:
                break
    return Outcome(records, len(records))
