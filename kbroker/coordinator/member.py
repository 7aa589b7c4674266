"""One member of a classic group, and its parked requests."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from kbroker.coordinator.common.ports import Parked
from kbroker.coordinator.timers import Timer
from wire.messages.describe_groups import DescribedGroupMember
from wire.messages.join_group import JoinGroupRequestProtocol

EMPTY_ASSIGNMENT = b""


@dataclass(eq=False, kw_only=True, slots=True)
class Member:
    """A member of a classic group.

    Shape      protocols maps assignor names, in order of preference, to metadata that is opaque to the broker; is_new
               is set from the first JoinGroup until it is answered; session is the session timer
    Invariant  awaiting_join is set only while the group prepares a rebalance (or stores a static member's new id),
               awaiting_sync only while it completes one
    """

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: dict[str, bytes]
    assignment: bytes = EMPTY_ASSIGNMENT
    session: Timer = field(default_factory=Timer)
    awaiting_join: Parked | None = None
    awaiting_sync: Parked | None = None
    is_new: bool = False

    def __repr__(self) -> str:
        return f"Member({self.member_id!r})"

    def has_satisfied_heartbeat(self) -> bool:
        """Whether the member stays although its session timer expired.

        A member with a parked request cannot send heartbeats, so it stays. A new member that has not received its id
        cannot send them either, but may be gone; it has a longer timeout and is removed when that expires.
        """
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)

    def offers(self, protocols: dict[str, bytes]) -> bool:
        """Whether the member has exactly these protocols: same names in the same order, same metadata."""
        return self.protocols == protocols and list(self.protocols) == list(protocols)

    def vote(self, candidates: Collection[str]) -> str:
        """The member's most preferred protocol among the candidates. It supports all of them."""
        return next(name for name in self.protocols if name in candidates)

    def described(self, protocol_name: str | None) -> DescribedGroupMember:
        """The member as DescribeGroups returns it; without metadata if no protocol is selected."""
        return DescribedGroupMember(
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            member_metadata=b"" if protocol_name is None else self.protocols[protocol_name],
            member_assignment=self.assignment,
        )


def protocols_of(request_protocols: Iterable[JoinGroupRequestProtocol]) -> dict[str, bytes]:
    """Protocol names to metadata, in order of preference. If a name occurs twice, the first entry is used."""
    protocols: dict[str, bytes] = {}
    for protocol in request_protocols:
        protocols.setdefault(protocol.name, protocol.metadata)
    return protocols
