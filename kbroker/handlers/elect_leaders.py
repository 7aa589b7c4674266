"""ElectLeaders: elect the preferred leaders of partitions, or hold unclean elections."""

from __future__ import annotations

from kbroker.handlers import forwards
from wire.messages.elect_leaders import ElectLeadersRequest

elect_leaders = forwards(ElectLeadersRequest, versions="0-2")
