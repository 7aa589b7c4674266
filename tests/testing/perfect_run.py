"""Histories of a correct broker, for a seed: the checkers must accept them."""

from __future__ import annotations

from dataclasses import dataclass, field

from kbroker.testing.draws import Draws
from kbroker.testing.history import Event, Function, Type

SOURCES = ("replica-1", "replica-2")


@dataclass
class Producer:
    name: str
    sent: int = 0
    in_flight: dict[str, list[str]] = field(default_factory=dict)


@dataclass
class PerfectRun:
    """Idempotent producers, many in flight; assigned and subscribed readers; rising log starts; control batches."""

    seed: int
    events: list[Event] = field(default_factory=list)
    logs: dict[str, list[str | None]] = field(default_factory=dict)
    starts: dict[str, int] = field(default_factory=dict)
    positions: dict[tuple[str, str], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.draws = Draws("perfect run", self.seed)
        keys = [f"orders-{number}" for number in range(self.draws.between(1, 3))]
        self.logs = {key: [] for key in keys}
        self.starts = dict.fromkeys(keys, 0)
        self.producers = [Producer(f"p{number}") for number in range(self.draws.between(1, 3))]
        self.readers = [f"r{number}" for number in range(self.draws.between(1, 2))]

    def note(self, process: str, function: Function, kind: Type, key: str, **more: object) -> None:
        self.events.append(
            Event(at_ms=len(self.events), process=process, function=function, type=kind, key=key, **more)  # type: ignore[arg-type]
        )

    def run(self) -> list[Event]:
        for _ in range(self.draws.between(60, 160)):
            key = self.draws.choice(list(self.logs))
            step = self.draws.weighted(
                [
                    (self.send, 8),
                    (self.complete, 8),
                    (self.poll, 6),
                    (self.assign, 1),
                    (self.control, 1),
                    (self.delete, 1),
                ]
            )
            step(key)
        for source in SOURCES:
            self.read_to_the_end(source)
        return self.events

    def send(self, key: str) -> None:
        producer = self.draws.choice(self.producers)
        producer.sent += 1
        value = f"{producer.name}-{producer.sent}"
        producer.in_flight.setdefault(key, []).append(value)
        self.note(producer.name, Function.SEND, Type.INVOKE, key, value=value)

    def complete(self, key: str) -> None:
        """The oldest send in flight is appended and acknowledged, appended without a reply, refused, or lost."""
        producer = self.draws.choice(self.producers)
        if not producer.in_flight.get(key):
            return
        value = producer.in_flight[key].pop(0)
        fate = self.draws.weighted([("ok", 12), ("unknown", 1), ("silent", 1), ("fail", 1), ("lost", 1)])
        if fate in {"ok", "unknown", "silent"}:
            self.logs[key].append(value)
        if fate == "ok":
            self.note(producer.name, Function.SEND, Type.OK, key, value=value, offset=len(self.logs[key]) - 1)
        elif fate == "fail":
            self.note(producer.name, Function.SEND, Type.FAIL, key, value=value, error="MESSAGE_TOO_LARGE")
        elif fate in {"unknown", "lost"}:
            self.note(producer.name, Function.SEND, Type.INFO, key, value=value, error="timed out")

    def poll(self, key: str) -> None:
        reader = self.draws.choice(self.readers)
        if (reader, key) not in self.positions:
            self.assign(key)
            return
        position = max(self.positions[reader, key], self.starts[key])
        for offset in range(position, min(position + 4, len(self.logs[key]))):
            value = self.logs[key][offset]
            if value is not None:
                self.note(reader, Function.POLL, Type.OK, key, value=value, offset=offset)
            position = offset + 1
        self.positions[reader, key] = position

    def assign(self, key: str) -> None:
        reader = self.draws.choice(self.readers)
        position = self.draws.between(self.starts[key], len(self.logs[key]))
        function = Function.SUBSCRIBE if self.draws.chance(0.3) else Function.ASSIGN
        if function is Function.SUBSCRIBE:
            for held in [held for held in self.positions if held[0] == reader]:
                del self.positions[held]
        self.positions[reader, key] = position
        self.note(reader, function, Type.OK, key, offset=position)

    def control(self, key: str) -> None:
        self.logs[key].append(None)

    def delete(self, key: str) -> None:
        self.starts[key] = self.draws.between(self.starts[key], len(self.logs[key]))

    def read_to_the_end(self, source: str) -> None:
        for key, log in self.logs.items():
            for offset in range(self.starts[key], len(log)):
                value = log[offset]
                if value is None:
                    self.note(source, Function.FINAL, Type.INFO, key, offset=offset, error="control")
                else:
                    self.note(source, Function.FINAL, Type.OK, key, offset=offset, value=value)
            self.note(source, Function.BOUNDS, Type.OK, key, offset=len(log), value=str(self.starts[key]))


def perfect_history(seed: int) -> list[Event]:
    return PerfectRun(seed).run()
