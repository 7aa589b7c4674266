"""One member of a classic group, and the request of it that waits."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kbroker.coordinator.timers import Timer
from wire.messages.describe_groups import DescribedGroupMember
from wire.messages.join_group import JoinGroupRequestProtocol

EMPTY_ASSIGNMENT = b""


class Parked:
    """A JoinGroup or SyncGroup that is answered later, exactly once, by `GroupShard.take_answers`.

    Shape   api_version is the request's, which decides how some answers look
    """

    __slots__ = ("api_version", "group_id")

    def __init__(self, group_id: str, api_version: int) -> None:
        self.group_id = group_id
        self.api_version = api_version

    def __repr__(self) -> str:
        return f"Parked({self.group_id!r}, v{self.api_version}, {id(self):#x})"


class Member:
    """A member as the coordinator knows it.

    Shape      protocols maps the names of assignors, the preferred first, to metadata that no broker looks into;
               is_new from its first JoinGroup until that is answered; session is due when it was silent too long
    Invariant  awaiting_join only while the group prepares a rebalance (or writes a static member's new id),
               awaiting_sync only while it completes one
    """

    __slots__ = (
        "assignment",
        "awaiting_join",
        "awaiting_sync",
        "client_host",
        "client_id",
        "group_instance_id",
        "is_new",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session",
        "session_timeout_ms",
    )

    def __init__(
        self,
        member_id: str,
        *,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: dict[str, bytes],
        session: Timer,
        assignment: bytes = EMPTY_ASSIGNMENT,
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.session = session
        self.awaiting_join: Parked | None = None
        self.awaiting_sync: Parked | None = None
        self.is_new = False

    def __repr__(self) -> str:
        return f"Member({self.member_id!r})"

    def has_satisfied_heartbeat(self) -> bool:
        """Whether the end of its session is no reason to remove it.

        Who waits for an answer cannot send heartbeats. A member that never got its id cannot either; but it is not
        known to be alive, so that it has a longer time, and only that.
        """
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)

    def offers(self, protocols: dict[str, bytes]) -> bool:
        """Whether these are its protocols: same names in the same order, same metadata."""
        return self.protocols == protocols and list(self.protocols) == list(protocols)

    def vote(self, candidates: Collection[str]) -> str:
        """The protocol that it prefers among candidates, each of which it supports."""
        return next(name for name in self.protocols if name in candidates)

    def described(self, protocol_name: str | None) -> DescribedGroupMember:
        """How DescribeGroups shows it; without metadata where no protocol is in force."""
        return DescribedGroupMember(
            member_id=self.member_id,
            group_instance_id=self.group_instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            member_metadata=b"" if protocol_name is None else self.protocols[protocol_name],
            member_assignment=self.assignment,
        )


def protocols_of(request_protocols: Iterable[JoinGroupRequestProtocol]) -> dict[str, bytes]:
    """Names to metadata, in the order of preference; of a name that is given twice, the first counts."""
    protocols: dict[str, bytes] = {}
    for protocol in request_protocols:
        protocols.setdefault(protocol.name, protocol.metadata)
    return protocols
