"""A controller with an open listener in memory: clients speak to it through the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import trio

from kbroker import quorum
from kbroker.client.streaming import Connection
from kbroker.config import Settings
from kbroker.config.rules import ConfigRules
from kbroker.controller.context import ControllerSettings
from kbroker.controller.embedded import EmbeddedController, open_controller
from kbroker.controller.features import SUPPORTED_FEATURES
from kbroker.controller.records import MAX_BATCH_BYTES
from kbroker.metadata.image import Image
from kbroker.runtime.metrics import Metrics
from kbroker.runtime.turns import Turns
from kbroker.security.audit import authorizer_of
from kbroker.security.securing import NodeSecurity
from kbroker.server.controller_listener import serve_controller
from kbroker.testing.disk import SimulatedDisk
from kbroker.testing.env import MemoryEnv
from kbroker.testing.net import MemoryNetwork
from wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from wire.messages.broker_registration import BrokerRegistrationRequest, Endpoint, FeatureRange
from wire.messages.controller_registration import ControllerRegistrationRequest, ControllerRegistrationResponse
from wire.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest

CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
NODE_ID = 3000
HOST, PORT = "controller.example", 9093
SETTINGS = (
    "process.roles=controller",
    f"node.id={NODE_ID}",
    "controller.listener.names=CONTROLLER",
    f"listeners=CONTROLLER://{HOST}:{PORT}",
)
LISTENER = Endpoint(name="CONTROLLER", host=HOST, port=PORT, security_protocol=0)


class Site:
    """A controller and what a test asks of it."""

    def __init__(self, controller: EmbeddedController, env: MemoryEnv, disk: SimulatedDisk) -> None:
        self.controller = controller
        self.env = env
        self.disk = disk
        self.epochs: dict[int, int] = {}
        self._clients: list[Connection] = []

    @property
    def image(self) -> Image:
        return self.controller.publisher.image

    async def connect(self) -> Connection:
        client = Connection(await self.env.connect(HOST, PORT), client_id="broker-1")
        client.protocol.served = {api_key: handler.versions for api_key, handler in quorum.discover().items()}
        self._clients.append(client)
        return client

    def close(self) -> None:
        for client in self._clients:
            client.close()

    async def register(self, client: Connection, broker_id: int, incarnation: int = 1) -> int:
        """Register and unfence a broker of another process; returns its epoch."""
        answer = await client.ask(registration(broker_id, incarnation))
        assert answer.error_code == 0, answer
        self.epochs[broker_id] = answer.broker_epoch
        assert not (await self.beat(client, broker_id)).is_fenced
        return int(answer.broker_epoch)

    async def beat(self, client: Connection, broker_id: int, *, shut_down: bool = False) -> BrokerHeartbeatResponse:
        request = BrokerHeartbeatRequest(
            broker_id=broker_id,
            broker_epoch=self.epochs[broker_id],
            current_metadata_offset=self.image.offset,
            want_fence=False,
            want_shut_down=shut_down,
        )
        answer = await client.ask(request)
        assert isinstance(answer, BrokerHeartbeatResponse)
        return answer


def registration(broker_id: int, incarnation: int = 1) -> BrokerRegistrationRequest:
    return BrokerRegistrationRequest(
        broker_id=broker_id,
        cluster_id=CLUSTER_ID,
        incarnation_id=UUID(int=1_000 * broker_id + incarnation),
        listeners=[Endpoint(name="PLAINTEXT", host=f"host{broker_id}", port=9092, security_protocol=0)],
        features=[
            FeatureRange(name=name, min_supported_version=lowest, max_supported_version=highest)
            for name, (lowest, highest) in SUPPORTED_FEATURES.items()
            if name != "kraft.version"
        ],
        rack=None,
        log_dirs=[UUID(int=5_000 + broker_id)],
    )


def creation(name: str, assignments: Mapping[int, list[int]]) -> CreateTopicsRequest:
    topic = CreatableTopic(
        name=name,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=ids) for index, ids in assignments.items()
        ],
        configs=[],
    )
    return CreateTopicsRequest(topics=[topic], timeout_ms=1_000)


@asynccontextmanager
async def controller_site(
    disk: SimulatedDisk | None = None,
    *,
    max_batch_bytes: int = MAX_BATCH_BYTES,
    network: MemoryNetwork | None = None,
    authorizer: Any = None,
    **overrides: object,
) -> AsyncIterator[Site]:
    """Run a controller that is no broker, with metadata settings, until the block ends; on a new network by default."""
    if disk is None:
        disk = SimulatedDisk(timestamp_ms=lambda: 0)
        disk.make_directory("/data")
        disk.sync_directory("/")
    env = MemoryEnv(disk)
    env.network = network or env.network
    more = (f"{key.replace('_', '.')}={value}" for key, value in overrides.items())
    settings = Settings.load(overrides=[*SETTINGS, *more])
    controller = await open_controller(
        env,
        "/data",
        settings=ControllerSettings.of(settings, CLUSTER_ID, listeners=[LISTENER]),
        rules=ConfigRules(settings),
        config=settings.metadata,
        max_batch_bytes=max_batch_bytes,
    )
    metrics, turns = Metrics(), Turns(env.now_ns)
    async with trio.open_nursery() as nursery:
        await nursery.start(controller.run)
        registered = ControllerRegistrationRequest(
            controller_id=NODE_ID,
            incarnation_id=UUID(int=1),
            zk_migration_ready=False,
            listeners=[LISTENER],
            features=[],
        )
        await controller.ask(registered, ControllerRegistrationResponse)
        server = await serve_controller(
            nursery,
            controller,
            [(LISTENER, [await env.listen(HOST, PORT, accepts=False)])],
            env=env,
            settings=settings,
            cluster_id=CLUSTER_ID,
            metrics=metrics,
            turns=turns,
            security=NodeSecurity(env, settings),
            authorizer=authorizer
            or authorizer_of(settings.authorizer, controller.publisher, now_ms=env.now_ms, turns=turns),
        )
        site = Site(controller, env, disk)
        try:
            yield site
        finally:
            site.close()
            await server.stop(grace_ms=1_000)
            nursery.cancel_scope.cancel()
    assert not metrics.counter("requests.faults").value, "a request met a fault of the controller, see its log"
