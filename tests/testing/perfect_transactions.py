"""Histories of a correct broker with transactions, for a seed: the checkers must accept them."""

from __future__ import annotations

from dataclasses import dataclass, field

from kbroker.testing.checkers import Allowances
from kbroker.testing.draws import Draws
from kbroker.testing.history import Event, Function, Type
from tests.testing.perfect_run import SOURCES

GROUP = "g"
INPUTS, OUTPUTS = ("in-0", "in-1"), ("out-0", "out-1")
JUDGE = "judge"
ALLOWED = Allowances(uncommitted=frozenset({"dirty"}))
COMMITTED, ABORTED = True, False


def offsets_of(key: str) -> str:
    """The partition of `__consumer_offsets` that has the offsets of an input."""
    return f"offsets of {key}"


@dataclass
class Open:
    """A transaction of a producer."""

    name: str
    keys: list[str] = field(default_factory=list)
    offsets: dict[str, int] = field(default_factory=dict)


@dataclass
class Producer:
    """A producer of a transactional id; `reads` is the input of one that consumes, transforms and produces."""

    name: str
    transactional_id: str
    reads: str = ""
    started: int = 0
    open: Open | None = None
    is_fenced: bool = False


@dataclass
class PerfectTransactions:
    """Transactional producers, one of them fenced; a group that copies inputs to outputs; readers of both levels."""

    seed: int
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.draws = Draws("perfect transactions", self.seed)
        self.logs: dict[str, list[tuple[str, str]]] = {key: [] for key in (*INPUTS, *OUTPUTS)}
        self.decided: dict[tuple[str, str], bool] = {}
        self.markers: list[tuple[str, str, bool]] = []
        self.positions: dict[tuple[str, str], int] = {}
        self.committed = dict.fromkeys(INPUTS, -1)
        self.pending: dict[str, str] = {}
        self.sent = 0
        self.producers = [
            Producer("p1", "id-1"), Producer("c0", "id-c0", reads="in-0"), Producer("c1", "id-c1", reads="in-1"),
        ]  # fmt: skip
        for producer in self.producers:
            self.note(producer.name, Function.INIT, Type.OK, "", value=producer.transactional_id, epoch=0)

    def note(self, process: str, function: Function, kind: Type, key: str, **more: object) -> None:
        self.events.append(
            Event(at_ms=len(self.events), process=process, function=function, type=kind, key=key, **more)  # type: ignore[arg-type]
        )

    def run(self) -> list[Event]:
        steps = [
            (self.feed, 3), (self.send, 6), (self.consume, 6), (self.end, 5), (self.mark, 8), (self.poll, 6),
            (self.read_offset, 3), (self.fence, 1), (self.tell_stable, 3),
        ]  # fmt: skip
        for _ in range(self.draws.between(80, 200)):
            self.draws.weighted(steps)()
        for producer in self.producers:
            if producer.open is not None:
                self.decide(producer.open, ABORTED)
        while self.markers:
            self.mark()
        self.finish()
        return self.events

    def feed(self) -> None:
        self.sent += 1
        self.append("feeder", self.draws.choice(INPUTS), f"feeder-{self.sent}", None)

    def append(self, process: str, key: str, value: str, transaction: str | None) -> None:
        self.note(process, Function.SEND, Type.INVOKE, key, value=value, transaction=transaction)
        self.logs[key].append((value, transaction or ""))
        if self.draws.chance(0.1):
            self.note(process, Function.SEND, Type.INFO, key, value=value, transaction=transaction)
        else:
            offset = len(self.logs[key]) - 1
            self.note(process, Function.SEND, Type.OK, key, value=value, offset=offset, transaction=transaction)

    def begin(self, producer: Producer) -> Open | None:
        """The open transaction; none while the markers of the last one are written, as with CONCURRENT_TRANSACTIONS."""
        if producer.open is None and not any(name.startswith(f"{producer.name}/") for _, name, _ in self.markers):
            producer.started += 1
            producer.open = Open(f"{producer.name}/{producer.started}")
        return producer.open

    def send(self) -> None:
        producer = self.draws.choice(self.producers)
        if not producer.reads and not producer.is_fenced and (one := self.begin(producer)) is not None:
            self.write(producer, one)

    def write(self, producer: Producer, one: Open) -> None:
        self.sent += 1
        key = self.draws.choice(OUTPUTS if producer.reads else (*INPUTS, *OUTPUTS))
        one.keys.append(key)
        self.append(producer.name, key, f"{producer.name}-{self.sent}", one.name)

    def consume(self) -> None:
        """Poll the next input, write for it, and add its offset to the transaction."""
        producer = self.draws.choice([each for each in self.producers if each.reads])
        key = producer.reads
        if (one := self.begin(producer)) is None:
            return
        if not one.offsets:
            position = max(self.committed[key], 0)
            if self.positions.get((producer.name, key)) != position:
                self.note(producer.name, Function.ASSIGN, Type.OK, key, offset=position)
            self.positions[producer.name, key] = position
        position = self.positions[producer.name, key]
        while position < self.last_stable_offset(key) and not self.is_visible(key, position):
            position += 1
        if position >= self.last_stable_offset(key):
            return
        value = self.logs[key][position][0]
        self.note(producer.name, Function.POLL, Type.OK, key, value=value, offset=position, transaction=one.name)
        self.positions[producer.name, key] = position + 1
        self.write(producer, one)
        if self.draws.chance(0.5):
            self.write(producer, one)
        more = {"value": GROUP, "offset": position + 1, "epoch": 1, "transaction": one.name}
        self.note(producer.name, Function.COMMIT, Type.INVOKE, key, **more)
        one.offsets[key] = position + 1
        self.pending[key] = one.name
        self.note(producer.name, Function.COMMIT, Type.OK, key, **more)

    def end(self) -> None:
        producer = self.draws.choice(self.producers)
        one = producer.open
        if one is None:
            return
        producer.open = None
        fate = (
            "fail" if producer.is_fenced else self.draws.weighted([("ok", 8), ("info", 3), ("abort", 2), ("fail", 1)])
        )
        if fate == "abort":
            self.decide(one, ABORTED)
            return
        self.note(producer.name, Function.TXN, Type.INVOKE, "", value=one.name)
        if not producer.is_fenced:
            self.decide(one, fate == "ok" or (fate == "info" and self.draws.chance(0.6)))
        self.note(producer.name, Function.TXN, Type(fate), "", value=one.name)

    def decide(self, one: Open, outcome: bool) -> None:
        self.markers += [(key, one.name, outcome) for key in sorted({*one.keys, *map(offsets_of, one.offsets)})]
        for key, offset in one.offsets.items():
            if outcome:
                self.committed[key] = offset

    def mark(self) -> None:
        if not self.markers:
            return
        self.write_marker(self.markers[self.draws.below(len(self.markers))])

    def write_marker(self, marker: tuple[str, str, bool]) -> None:
        self.markers.remove(marker)
        key, name, outcome = marker
        if key in self.logs:
            self.decided[name, key] = outcome
            self.logs[key].append(("", name))
        else:
            self.pending = {each: by for each, by in self.pending.items() if offsets_of(each) != key or by != name}

    def fence(self) -> None:
        """A new producer takes over the transactional id; the earlier one does not know it."""
        producer = self.producers[0]
        if producer.is_fenced:
            return
        if producer.open is not None:
            self.decide(producer.open, ABORTED)
        for marker in [marker for marker in self.markers if marker[1].startswith("p1/")]:
            self.write_marker(marker)
        producer.is_fenced = True
        self.producers.append(Producer("p2", "id-1"))
        self.note("p2", Function.INIT, Type.OK, "", value="id-1", epoch=1)
        if producer.open is not None and self.draws.chance(0.5):
            self.sent += 1
            more = {"value": f"p1-{self.sent}", "transaction": producer.open.name}
            self.note("p1", Function.SEND, Type.INVOKE, "out-0", **more)
            self.note("p1", Function.SEND, Type.FAIL, "out-0", error="INVALID_PRODUCER_EPOCH", **more)

    def last_stable_offset(self, key: str) -> int:
        for offset, (value, name) in enumerate(self.logs[key]):
            if value and name and (name, key) not in self.decided:
                return offset
        return len(self.logs[key])

    def is_visible(self, key: str, offset: int) -> bool:
        """Whether a record below the last stable offset is for read_committed readers."""
        value, name = self.logs[key][offset]
        return bool(value) and (not name or self.decided[name, key])

    def poll(self) -> None:
        reader, key = self.draws.choice(["r1", "r2", "dirty"]), self.draws.choice(list(self.logs))
        if (reader, key) not in self.positions:
            self.note(reader, Function.ASSIGN, Type.OK, key, offset=0)
        self.read(reader, key, limit=5)

    def read(self, reader: str, key: str, *, limit: int) -> None:
        position = self.positions.get((reader, key), 0)
        end = len(self.logs[key]) if reader == "dirty" else self.last_stable_offset(key)
        for offset in range(position, min(end, position + limit)):
            value = self.logs[key][offset][0]
            if value and (reader == "dirty" or self.is_visible(key, offset)):
                self.note(reader, Function.POLL, Type.OK, key, value=value, offset=offset)
            position = offset + 1
        self.positions[reader, key] = position

    def read_offset(self) -> None:
        key = self.draws.choice(INPUTS)
        more = {"value": GROUP}
        self.note("admin", Function.COMMITTED, Type.INVOKE, key, **more)
        if key in self.pending:
            self.note("admin", Function.COMMITTED, Type.FAIL, key, error="UNSTABLE_OFFSET_COMMIT", **more)
        else:
            self.note("admin", Function.COMMITTED, Type.OK, key, offset=self.committed[key], **more)

    def tell_stable(self) -> None:
        key = self.draws.choice(list(self.logs))
        stable, end = self.last_stable_offset(key), str(len(self.logs[key]))
        self.note("broker-1", Function.STABLE, Type.OK, key, offset=stable, value=end, epoch=0)

    def finish(self) -> None:
        """Read everything."""
        for key, log in self.logs.items():
            for source in SOURCES:
                for offset, (value, _) in enumerate(log):
                    if value:
                        self.note(source, Function.FINAL, Type.OK, key, offset=offset, value=value)
                    else:
                        self.note(source, Function.FINAL, Type.INFO, key, offset=offset, error="control")
                self.note(source, Function.BOUNDS, Type.OK, key, offset=len(log), value="0")
            self.note(JUDGE, Function.ASSIGN, Type.OK, key, offset=0)
            self.read(JUDGE, key, limit=len(log))
            self.note(JUDGE, Function.POLL, Type.INFO, key, offset=len(log))
            self.note("broker-1", Function.STABLE, Type.OK, key, offset=len(log), value=str(len(log)), epoch=0)
        for _ in range(4):
            self.read_offset()


def perfect_transactions(seed: int) -> list[Event]:
    return PerfectTransactions(seed).run()
