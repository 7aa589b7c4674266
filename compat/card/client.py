"""What a row uses: requests, raw bytes, topics and groups of its own, and notes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from compat.card.codec import Message, encode_request
from compat.card.connection import ANSWER_S, Connection, Deadline
from compat.card.outcome import code_name, plain
from compat.card.registry import NotOffered
from compat.card.session import GROUP, TRANSACTION, Failed, Session, Topic, pause, received
from compat.oracle.conftest import kind
from compat.oracle.raw import Answer, Reply
from wire.errors import ErrorCode

UNKNOWN_ID = b"\x07" * 16


class Client:
    """One row's view of the broker. Errors of every method: Failed, NotOffered, OSError."""

    def __init__(self, session: Session, limit_s: float) -> None:
        self.session = session
        self.deadline = Deadline.after(limit_s)
        self.notes: dict[str, Any] = {}
        self.skipped: set[str] = set()
        self._connections: list[Connection] = []
        self._main: Connection | None = None

    def close(self) -> None:
        """Close all connections of the row."""
        for connection in self._connections:
            connection.close()

    def note(self, label: str, value: Any) -> None:
        """Note what the row observed."""
        assert label not in self.notes, f"{label!r} is noted twice"
        self.notes[label] = plain(value, self.session.prefix)

    def skip(self, label: str) -> None:
        """Leave out a note about a version that the broker does not advertise, which a row of its own reports."""
        self.skipped.add(label)

    def note_code(self, label: str, code: int) -> None:
        """Note an error code by its name."""
        self.note(label, code_name(code))

    def connection(self) -> Connection:
        """A new connection, closed at the row's end."""
        connection = Connection(self.session.address, self.deadline, self.session.security)
        self._connections.append(connection)
        return connection

    def newest(self, api: str, most: int = 32767) -> int:
        """The newest common version of an API."""
        return self.session.newest(api, most)

    def send(
        self, connection: Connection, api: str, version: int, message: Message, *, client_id: str = "card",
        correlation_id: int = 1,
    ) -> None:  # fmt: skip
        """Send a request, whose answer `receive` returns."""
        self.session.require(api, version)
        connection.send(encode_request(api, version, message, client_id=client_id, correlation_id=correlation_id))

    def receive(self, connection: Connection, api: str, version: int, *, wait_s: float = ANSWER_S) -> Message:
        """The answer to a request that was sent."""
        return received(connection, api, version, wait_s=wait_s)

    def call(self, api: str, version: int, message: Message, *, client_id: str = "card") -> Message:
        """A request and its answer, on a connection that the row keeps."""
        self.session.require(api, version)
        if self._main is None:
            self._main = self.connection()
        try:
            self.send(self._main, api, version, message, client_id=client_id)
            return self.receive(self._main, api, version)
        except Failed:
            self._main = None
            raise

    def ask(self, data: bytes, *, finish: bool = False, timeout_s: float = 10.0) -> Answer:
        """The answer to any bytes on a new connection."""
        if finish and self.session.security.is_encrypted:
            raise NotOffered("this row closes one direction of a connection, which TLS cannot do")
        connection = self.connection()
        connection.send(data)
        if finish:
            connection.finish()
        answer = connection.answer(timeout_s=timeout_s)
        connection.close()
        return answer

    def reaction(self, data: bytes, *, finish: bool = False) -> str:
        """What any bytes lead to: reply, close or silence."""
        return kind(self.ask(data, finish=finish))

    def is_silent(self, connection: Connection, *, timeout_s: float = 0.3) -> bool:
        """Whether nothing arrives within the time."""
        return not isinstance(connection.answer(timeout_s=timeout_s), Reply)

    def until(self, condition: Callable[[], bool], lacking: str) -> None:
        """Wait for a condition; `lacking` says in the report what did not happen."""
        while not condition():
            pause(self.deadline, lacking)

    def new_name(self, stem: str) -> str:
        """A topic's name that is unused; the topic is deleted at the end if the row creates it."""
        name = self.session.new_name(stem)
        self.session.topics.add(name)
        return name

    def topic(self, stem: str = "topic", *, partitions: int = 1, configs: Mapping[str, str] | None = None) -> Topic:
        """Create a topic and wait until its partitions have leaders."""
        name = self.new_name(stem)
        listed: Message = {"Name": name, "NumPartitions": partitions, "ReplicationFactor": 1}
        if self.session.brokers > 1:
            places = [{"PartitionIndex": index, "BrokerIds": [self.session.node]} for index in range(partitions)]
            listed |= {"NumPartitions": -1, "ReplicationFactor": -1, "Assignments": places}
        # Records of the card are years old, and retention would delete them while a row reads them.
        settings = {"retention.ms": "-1", **(configs or {})}
        listed["Configs"] = [{"Name": key, "Value": value} for key, value in settings.items()]
        answer = self.call("CreateTopics", self.newest("CreateTopics", 7), {"Topics": [listed], "timeoutMs": 15_000})
        created = answer["Topics"][0]
        if created["ErrorCode"] != ErrorCode.NONE:
            wanted = f" with {dict(configs)}" if configs else ""
            text = created.get("ErrorMessage") or "no text"
            raise Failed(f"a topic{wanted} cannot be created: {code_name(created['ErrorCode'])} ({text})")
        self.await_leaders(name, partitions)
        return Topic(name, created.get("TopicId", bytes(16)))

    def await_leaders(self, name: str, partitions: int) -> None:
        """Wait until the broker serves reads of every partition."""
        probes = [{"PartitionIndex": index, "Timestamp": -1} for index in range(partitions)]
        request = {"ReplicaId": -1, "Topics": [{"Name": name, "Partitions": probes}]}
        version = self.newest("ListOffsets", 5)

        def have_leaders() -> bool:
            found = self.call("ListOffsets", version, request)["Topics"][0]["Partitions"]
            return all(each["ErrorCode"] == ErrorCode.NONE for each in found)

        self.until(have_leaders, f"topic {name} has no leaders")

    def shared_topic(self, key: object, make: Callable[[], Topic]) -> Topic:
        """A topic that several rows read; the first of them makes it."""
        shared = self.session.shared
        with self.session.lock:
            gate = self.session.gates.setdefault(key, threading.Lock())
        with gate:
            if key not in shared:
                try:
                    shared[key] = make()
                except (Failed, NotOffered) as failure:  # the others need not wait for the same
                    shared[key] = failure
            found = shared[key]
        if isinstance(found, Failed | NotOffered):
            raise found
        return found

    def group(self, stem: str = "group") -> str:
        """A new group that this broker coordinates; deleted at the end."""
        name = self.session.coordinated(stem, GROUP, self.deadline)
        self.session.groups.add(name)
        return name

    def transactional_id(self, stem: str = "id") -> str:
        """A new transactional id that this broker coordinates."""
        return self.session.coordinated(stem, TRANSACTION, self.deadline)

    def is_alive(self) -> bool:
        """Whether the broker answers on a new connection."""
        self.session.exchange(self.deadline, "ApiVersions", 0, {})
        return True
