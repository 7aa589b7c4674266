"""Which brokers are alive, by their heartbeats.

Source: Kafka's BrokerHeartbeatManager.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

from kbroker.metadata.image import Image


@dataclass(slots=True, eq=False)
class Session:
    """The heartbeat state of one broker. It is not in the log: a new controller gives every unfenced broker a full
    session.
    """

    last_seen_ms: int
    metadata_offset: int = -1
    opened: bool = False
    shutdown_offset: int = -1


class BrokerSessions:
    """Tracks which brokers are alive, by their heartbeats.

    Units  times are now_ms (monotonic); a session lasts timeout_ms after the last heartbeat
    Shape  own_incarnation is that of the broker in the controller's process, set before it registers; own_id is its id
           after that. Both are None without such a broker. It lives as long as the controller and acts on every image
           before the controller answers, so it needs no heartbeats
    """

    def __init__(self, timeout_ms: int) -> None:
        self.timeout_ms = timeout_ms
        self.own_incarnation: UUID | None = None
        self.own_id: int | None = None
        self._sessions: dict[int, Session] = {}

    def restore(self, image: Image, now_ms: int) -> None:
        """Start with a session for each unfenced broker of the image."""
        self._sessions = {
            broker.id: Session(now_ms, opened=True) for broker in image.brokers.values() if not broker.fenced
        }

    def begin(self, broker_id: int, now_ms: int) -> None:
        """Reset the session for a new incarnation; the first heartbeat opens it."""
        self._sessions[broker_id] = Session(now_ms)

    def close(self, broker_id: int) -> None:
        """Let the next incarnation of this broker register at once. Until it is fenced, its session can still expire:
        the disk may be too full for the record that fences it.
        """
        self._sessions[broker_id].opened = False

    def touch(self, broker_id: int, metadata_offset: int, now_ms: int) -> None:
        """Record a heartbeat."""
        session = self._sessions.setdefault(broker_id, Session(now_ms))
        session.last_seen_ms, session.metadata_offset, session.opened = now_ms, metadata_offset, True

    def begin_shutdown(self, broker_id: int, offset: int) -> None:
        """Set the offset that the other brokers must have replayed before this broker may stop."""
        self._sessions[broker_id].shutdown_offset = offset

    def others_know(self, broker_id: int, image: Image) -> bool:
        """Whether every active broker has replayed the records that moved this broker's leaders away."""
        return self.lowest_offset(image) >= self._sessions[broker_id].shutdown_offset

    def is_live(self, broker_id: int, now_ms: int) -> bool:
        """Whether a heartbeat opened the session and it has not expired."""
        if broker_id == self.own_id:
            return True
        session = self._sessions.get(broker_id)
        return session is not None and session.opened and now_ms < session.last_seen_ms + self.timeout_ms

    def expired(self, image: Image, now_ms: int) -> int | None:
        """The unfenced broker that has been silent longest, if its session has expired."""
        late = [
            (session.last_seen_ms, broker_id)
            for broker_id, session in self._of_unfenced(image)
            if now_ms >= session.last_seen_ms + self.timeout_ms
        ]
        return min(late)[1] if late else None

    def next_deadline_ms(self, image: Image) -> int | None:
        """When the next session of an unfenced broker expires."""
        return min((session.last_seen_ms + self.timeout_ms for _, session in self._of_unfenced(image)), default=None)

    def lowest_offset(self, image: Image) -> int:
        """The metadata offset that every active broker has reached."""
        offsets = [
            session.metadata_offset
            for broker_id, session in self._of_unfenced(image)
            if not image.brokers[broker_id].in_controlled_shutdown
        ]
        return min(offsets, default=image.offset)

    def _of_unfenced(self, image: Image) -> Iterator[tuple[int, Session]]:
        """The sessions of the unfenced brokers of other processes, with their ids."""
        for broker_id, session in self._sessions.items():
            broker = image.brokers.get(broker_id)
            if broker is not None and not broker.fenced and broker_id != self.own_id:
                yield broker_id, session
