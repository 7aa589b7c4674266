"""One broker of a cluster in one trio run: its settings, its links to others, and its view of the controller."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import trio

from kbroker.broker import Broker
from kbroker.config import Settings
from kbroker.controller.embedded import EmbeddedController
from kbroker.controller.port import NEWEST_VERSION, Sender
from kbroker.metadata.publisher import MetadataPublisher
from kbroker.replication.partition import Partition
from kbroker.storage.log_directory import LogDirectory
from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.env import MemoryEnv
from kbroker.testing.net import MemoryNetwork, MemoryStream

DATA = "/data"


def settings_of(node_id: int, given: Mapping[str, object]) -> Settings:
    """The settings of one node; `given` are Kafka's keys."""
    return Settings.load(
        overrides=[f"{key}={value}" for key, value in given.items()],
        defaults={
            "node.id": str(node_id),
            "log.dirs": DATA,
            "listeners": f"PLAINTEXT://broker-{node_id}:9092",
            "kbroker.metadata.reserve.bytes": "65536",
        },
    )


class Links(MemoryNetwork):
    """The network as one broker sees it: its links to other brokers can be cut."""

    def __init__(self, shared: MemoryNetwork) -> None:
        self.listeners = shared.listeners
        self.cut_hosts: set[str] = set()
        self._streams: list[tuple[str, MemoryStream]] = []

    async def connect(self, host: str, port: int) -> MemoryStream:
        if host in self.cut_hosts:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"the link to {host} is cut")
        stream = await super().connect(host, port)
        self._streams.append((host, stream))
        return stream

    def cut(self, host: str) -> None:
        """Close the connections that this broker has opened to a host, and refuse new ones."""
        self.cut_hosts.add(host)
        for to, stream in self._streams:
            if to == host:
                stream.cut()


class Port:
    """The controller as one broker sees it: an answer arrives after the broker has the metadata of the decision."""

    def __init__(self, running: RunningBroker, controller: EmbeddedController) -> None:
        self._running = running
        self._controller = controller

    async def ask(
        self,
        request: Any,
        response: type[Any],
        *,
        version: int = NEWEST_VERSION,
        is_needed: bool = False,
        sender: Sender | None = None,
    ) -> Any:
        while self._running.is_cut_from_controller:  # noqa: ASYNC110
            await trio.sleep(0.05)
        answer = await self._controller.ask(request, response, version=version, is_needed=is_needed)
        offset = self._controller.publisher.image.offset
        while self._running.metadata.image.offset < offset:
            await self._running.published.wait()
        return answer


@dataclass(eq=False)
class RunningBroker:
    """One broker of a cluster, from `start` to `kill` or `stop`."""

    id: int
    disk: SimulatedDisk
    env: MemoryEnv
    delay_ms: int
    metadata: MetadataPublisher = field(init=False)
    broker: Broker = field(init=False)
    directory: LogDirectory = field(init=False)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended: trio.Event = field(default_factory=trio.Event)
    published: trio.Event = field(default_factory=trio.Event)
    is_cut_from_controller: bool = False

    def partition(self, topic: str = "t", index: int = 0) -> Partition:
        """This broker's replica."""
        return self.broker.replicas.partitions[topic, index]
