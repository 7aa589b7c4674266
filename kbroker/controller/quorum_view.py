"""Which controllers there are, and which of them leads, as far as a broker knows. No I/O.

A broker starts with the addresses in its settings. Any controller answers a Fetch with the leader and its address
(KIP-853); with kraft.version 1 the voters' addresses are also in the metadata log. The leader of an older epoch is
never taken for the leader of a newer one.

Source: KIP-595, KIP-853; QuorumState and KafkaRaftClient of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from kbroker.config.quorum import ControllerAddress
from kbroker.security.connecting import PeerSecurity
from wire.stored.control import VotersRecord


class Address(NamedTuple):
    """Where a controller listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class QuorumView:
    """See the module docstring.

    epoch      the newest epoch that is known
    leader     the address of its leader, None while unknown
    leader_id  its id, -1 while unknown
    security   what the controllers' listener expects, None without TLS and SASL
    """

    def __init__(
        self,
        configured: Sequence[ControllerAddress],
        *,
        listener: str,
        epoch: int,
        security: PeerSecurity | None = None,
    ) -> None:
        self.epoch = epoch
        self.security = security
        self.leader: Address | None = None
        self.leader_id = -1
        self._listener = listener
        self._configured = [Address(one.host, one.port) for one in configured]
        self._static = {one.id: Address(one.host, one.port) for one in configured if one.id is not None}
        self._voters: dict[int, Address] = {}
        self._next = 0

    def next_address(self) -> Address:
        """The controller to ask next: the leader, or without a known leader one after another."""
        if self.leader is not None:
            return self.leader
        known = list(dict.fromkeys([*self._voters.values(), *self._configured]))
        self._next += 1
        return known[self._next % len(known)]

    def on_leader(self, leader_id: int, epoch: int, endpoints: Iterable[tuple[int, str, int]]) -> bool:
        """Note what a controller says about the leader (-1 for none); returns whether anything has changed."""
        if epoch < self.epoch or (epoch == self.epoch and leader_id < 0):
            return False
        found = {node_id: Address(host, port) for node_id, host, port in endpoints}
        address = found.get(leader_id) or self._voters.get(leader_id) or self._static.get(leader_id)
        if (epoch, leader_id, address) == (self.epoch, self.leader_id, self.leader):
            return False
        self.epoch, self.leader_id, self.leader = epoch, leader_id, address
        return True

    def on_voters(self, voters: VotersRecord | None) -> None:
        """Note the voters in the metadata log."""
        if voters is not None:
            self._voters = {
                voter.voter_id: Address(endpoint.host, endpoint.port)
                for voter in voters.voters
                for endpoint in voter.endpoints
                if endpoint.name == self._listener
            }

    def on_failure(self, address: Address) -> None:
        """Note that a controller does not answer. If it was the leader, ask the others who leads now."""
        if address == self.leader:
            self.leader, self.leader_id = None, -1
