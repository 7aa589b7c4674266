"""VerifiableConsumer of Kafka's Java client, in a process that can be stopped, paused and killed."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from compat.brokers import end
from compat.clients import filling
from compat.kafka import start_tool

PARTITIONS, EACH = 6, 30
LATEST_S = 120.0
SESSION_MS = 6_000  # the shortest that a broker allows
STRATEGIES = {
    "range": "RangeAssignor",
    "round robin": "RoundRobinAssignor",
    "sticky": "StickyAssignor",
    "cooperative sticky": "CooperativeStickyAssignor",
}


class JavaMember:
    """One process: the partitions and records in the events that it prints."""

    def __init__(self, process: subprocess.Popen[str], changed: threading.Condition) -> None:
        self.process = process
        self.events: list[dict[str, Any]] = []
        self.owns: set[int] = set()
        self.got: list[tuple[int, int, str]] = []  # partition, offset, value
        self.committed: dict[int, list[int]] = {}  # every offset that was committed, in order
        self.rebalances = 0
        self._changed = changed
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed, contextlib.suppress(json.JSONDecodeError):
                self._note(json.loads(line))
                self._changed.notify_all()

    def _note(self, event: dict[str, Any]) -> None:
        self.events.append(event)
        name = event["name"]
        if name in {"partitions_assigned", "partitions_revoked"}:
            named = {each["partition"] for each in event["partitions"]}
            self.owns = self.owns | named if name == "partitions_assigned" else self.owns - named
            self.rebalances += 1
        elif name == "record_data":
            self.got.append((event["partition"], event["offset"], event["value"]))
        elif name == "offsets_committed":
            assert event["success"], event
            for each in event["offsets"]:
                self.committed.setdefault(each["partition"], []).append(each["offset"])

    def pause(self) -> None:
        """SIGSTOP: nothing runs and no heartbeat goes out; takes effect with a delay on a busy machine."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        """SIGCONT."""
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """SIGTERM: it leaves the group and ends."""
        end(self.process)
        self._reader.join()

    def kill(self) -> None:
        """`kill -9`."""
        end(self.process, signal_number=signal.SIGKILL)
        self._reader.join()


class JavaTeam:
    """The members of one group on one topic."""

    def __init__(self, servers: str, group: str, topic: str, partitions: int) -> None:
        self.members: list[JavaMember] = []
        self.all: list[JavaMember] = []
        self._partitions = list(range(partitions))
        self._arguments = ["--bootstrap-server", servers, "--group-id", group, "--topic", topic, "--verbose"]
        self._changed = threading.Condition()

    def join(
        self,
        strategy: str = "range",
        *,
        instance: str | None = None,
        protocol: str = "classic",
        assignor: str = "uniform",
    ) -> JavaMember:
        """A new member: of the classic protocol with a strategy, of the new one (`consumer`) with an assignor."""
        if protocol == "classic":
            more = ["--assignment-strategy", f"org.apache.kafka.clients.consumer.{STRATEGIES[strategy]}"]
            more += ["--session-timeout", str(SESSION_MS)]
        else:
            more = ["--group-protocol", "CONSUMER", "--group-remote-assignor", assignor]
        more += ["--reset-policy", "earliest"]
        more += ["--group-instance-id", instance] if instance else []
        process = start_tool("org.apache.kafka.tools.VerifiableConsumer", *self._arguments, *more)
        self.members.append(JavaMember(process, self._changed))
        self.all.append(self.members[-1])
        return self.members[-1]

    def lose(self, member: JavaMember, how: Callable[[JavaMember], None]) -> None:
        """End a member with the given function."""
        how(member)
        self.members.remove(member)

    def until(self, reached: Callable[[], bool]) -> None:
        """Wait until the condition holds."""
        deadline = time.monotonic() + LATEST_S
        with self._changed:
            while not reached():
                reported = [(sorted(member.owns), len(member.got), member.process.poll()) for member in self.all]
                assert time.monotonic() < deadline, f"not reached: {reported}"
                self._changed.wait(0.5)

    def share(self, *counts: int, without: JavaMember | None = None) -> None:
        """Wait until all partitions are owned, each by one member, and the members own these counts."""

        def shared() -> bool:
            owners = [member for member in self.members if member is not without]
            owned = sorted(itertools.chain.from_iterable(member.owns for member in owners))
            return owned == self._partitions and [len(member.owns) for member in owners] == list(counts)

        self.until(shared)

    def got(self) -> list[tuple[int, int, str]]:
        """The records of all members, including dead ones."""
        return list(itertools.chain.from_iterable(member.got for member in self.all))

    def take(self) -> list[tuple[int, int, str]]:
        """The records since the last call, which are then dropped."""
        with self._changed:
            found = self.got()
            for member in self.all:
                member.got.clear()
                member.events.clear()
            return found

    def complete(self, count: int) -> None:
        """Wait until this many records of each partition arrived and are committed; each arrived once with the right
        value.
        """
        whole = dict.fromkeys(self._partitions, count)

        def committed() -> dict[int, int]:
            found: dict[int, int] = {}
            for member in self.all:
                for partition, offsets in member.committed.items():
                    found[partition] = max(found.get(partition, 0), offsets[-1])
            return found

        self.until(lambda: committed() == whole)
        expected = {
            (partition, offset, f"{partition}:{offset}") for partition in self._partitions for offset in range(count)
        }
        assert Counter(self.got()) == Counter(expected)
        for member in self.all:
            for offsets in member.committed.values():
                assert offsets == sorted(offsets)

    def close(self) -> None:
        """End the processes that still run."""
        for member in self.members:
            member.resume()
            member.kill()


class Scene(JavaTeam):
    """A team and the topic that it reads."""

    def __init__(self, servers: str, group: str, topic: str) -> None:
        super().__init__(servers, group, topic, PARTITIONS)
        self._servers, self._topic, self._count = servers, topic, 0

    def read_more(self) -> None:
        """Write more records to each partition, and wait until their owners have read them once."""
        before = [len(member.got) for member in self.members]
        numbers = range(self._count, self._count + EACH)
        values = {partition: [b"%d:%d" % (partition, number) for number in numbers] for partition in range(PARTITIONS)}
        filling.fill(self._servers, self._topic, values)
        self._count += EACH
        self.complete(self._count)
        for member, place in zip(self.members, before, strict=True):
            assert {partition for partition, _, _ in member.got[place:]} == member.owns
