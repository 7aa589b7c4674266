"""What a controller does by itself, on virtual time: fencing, balancing, NoOp records."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from kbroker.broker.lifecycle import BrokerLifecycle
from kbroker.controller.embedded import EmbeddedController, open_controller
from kbroker.controller.observers import ObserverKey
from kbroker.controller.upkeep import keep_up
from kbroker.metadata.image import Image
from kbroker.testing.disk import Fault, SimulatedDisk
from kbroker.testing.env import MemoryEnv
from tests.controller.cluster import CLUSTER_ID, RULES, SETTINGS
from tests.controller.injected import inject
from tests.controller.test_embedded import DEFAULTS, create, new_disk, topic
from wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from wire.messages.broker_registration import Endpoint
from wire.stored.metadata import PartitionChangeRecord

SESSION_S = 9.0


class Site:
    """A controller and the lifecycles of its brokers: broker 1 in its process, the others in other processes."""

    def __init__(self, controller: EmbeddedController) -> None:
        self.controller = controller
        self.brokers: dict[int, BrokerLifecycle] = {}

    @property
    def image(self) -> Image:
        return self.controller.publisher.image

    async def start(self, broker_id: int) -> None:
        incarnation_id = UUID(int=700 + broker_id)
        if broker_id == 1:
            self.controller.sessions.own_incarnation = incarnation_id
        lifecycle = BrokerLifecycle(
            self.controller,
            self.controller.publisher,
            env=self.controller._env,
            broker_id=broker_id,
            cluster_id=CLUSTER_ID,
        )
        await lifecycle.register(
            incarnation_id=incarnation_id,
            endpoints=[Endpoint(name="PLAINTEXT", host="h", port=9092, security_protocol=0)],
            log_dirs=[UUID(int=5000 + broker_id)],
        )
        await lifecycle.unfence()
        self.brokers[broker_id] = lifecycle

    async def beat(self, broker_id: int) -> None:
        request = BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=self.brokers[broker_id].epoch,
            current_metadata_offset=self.image.offset,
            want_fence=False,
            want_shut_down=False,
        )
        await self.controller.ask(request, BrokerHeartbeatResponse, version=1)

    def fenced(self) -> list[int]:
        return [broker.id for broker in self.image.brokers.values() if broker.fenced]

    def leaders(self) -> list[int]:
        return [partition.leader for partition in self.image.topics_by_name["a"].partitions.values()]


@asynccontextmanager
async def running(
    *brokers: int, disk: SimulatedDisk | None = None, is_followed: bool = True, **settings: object
) -> AsyncIterator[Site]:
    env = MemoryEnv(disk or new_disk())
    config = replace(DEFAULTS, **settings)  # type: ignore[arg-type]
    controller = await open_controller(env, "/data", settings=SETTINGS, rules=RULES, config=config)
    async with trio.open_nursery() as nursery:
        await nursery.start(controller.run)

        async def upkeep() -> None:
            await keep_up(controller, env, config, is_followed=is_followed)

        nursery.start_soon(upkeep)
        site = Site(controller)
        for broker in brokers:
            await site.start(broker)
        yield site
        nursery.cancel_scope.cancel()


async def test_r1_a_silent_broker_is_fenced_when_its_session_ends(autojump_clock: MockClock) -> None:
    async with running(1, 2, 3) as site:
        await create(site.controller, topic("a", assignments={0: [2, 3]}))
        await trio.sleep(5)
        await site.beat(3)
        await trio.sleep(SESSION_S - 5 - 0.01)
        assert site.fenced() == []
        await trio.sleep(0.02)
        assert (site.fenced(), site.leaders()) == ([2], [3])
        await trio.sleep(5)
        assert (site.fenced(), site.leaders()) == ([2, 3], [-1])
        await trio.sleep(1_000)
        assert site.fenced() == [2, 3], "the controller's own broker needs no heartbeats"
        await site.beat(3)
        assert (site.fenced(), site.leaders()) == ([2], [3])


async def test_r2_a_controller_that_was_suspended_fences_no_broker_at_once(autojump_clock: MockClock) -> None:
    async with running(1, 2) as site:
        await wait_all_tasks_blocked()
        autojump_clock.jump(20)  # SIGSTOP of the controller's process, while heartbeats arrive in its sockets
        await trio.sleep(1)
        assert site.fenced() == []
        await site.beat(2)
        await trio.sleep(SESSION_S - 0.1)
        assert site.fenced() == []
        await trio.sleep(SESSION_S)
        assert site.fenced() == [2]


async def test_d9_fencing_is_retried_after_a_full_disk(autojump_clock: MockClock) -> None:
    disk = new_disk()
    async with running(1, 2, disk=disk) as site:
        disk.inject(Fault(errno.ENOSPC, name="write", path="*.log", times=-1))
        await trio.sleep(SESSION_S + 3)
        assert site.fenced() == []
        disk.heal()
        await trio.sleep(2)
        assert site.fenced() == [2]


@pytest.mark.parametrize("enabled", [True, False])
async def test_leaders_are_balanced_regularly_if_it_is_enabled(autojump_clock: MockClock, enabled: bool) -> None:
    async with running(
        1, 2, auto_leader_rebalance_enable=enabled, leader_imbalance_check_interval_seconds=20, is_followed=False
    ) as site:
        await create(site.controller, topic("a", assignments={0: [2, 1]}))
        partition = site.image.topics_by_name["a"].partitions[0]
        await trio.sleep(SESSION_S + 1)
        assert site.leaders() == [1]
        await site.beat(2)
        assert partition.replicas == (2, 1)
        isr = PartitionChangeRecord(partition_id=0, topic_id=site.image.topics_by_name["a"].id, isr=[1, 2])
        await inject(site.controller, lambda: [isr])
        await trio.sleep(8)
        await site.beat(2)
        assert site.leaders() == [1]
        await trio.sleep(4)
        assert site.leaders() == ([2] if enabled else [1])


async def test_no_ops_are_written_while_an_observer_follows(autojump_clock: MockClock) -> None:
    async with running(1) as site:
        before = site.image.offset
        await trio.sleep(10)
        assert site.image.offset == before
        key = ObserverKey(2, UUID(int=2))
        site.controller.observers.on_fetch(key, 1, log_end_offset=1, timestamp_ms=site.controller._env.timestamp_ms())
        await trio.sleep(10)
        assert before + 18 <= site.image.offset <= before + 20
