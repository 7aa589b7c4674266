"""How a broker belongs to its cluster: with a controller in its own process, or as a member of a quorum elsewhere.

Both have the same interface. Only the order of a start differs. A broker with its own controller loads its logs and
then registers. A member of a quorum first follows the metadata and registers, because the controllers say what it has
to load; it sends heartbeats while it loads its logs, and stays fenced until then.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from typing import Protocol

import trio

from kbroker.broker.lifecycle import FEATURES_IN_A_QUORUM, BrokerLifecycle, refuse_unsupported
from kbroker.config import Settings
from kbroker.config.quorum import quorum_of
from kbroker.controller.embedded import EmbeddedController, controller_of
from kbroker.controller.metadata_follower import open_follower
from kbroker.controller.observer import MetadataObserver, cluster_id_of
from kbroker.controller.port import ControllerPort
from kbroker.controller.quorum_view import QuorumView
from kbroker.controller.remote import RemoteController
from kbroker.controller.upkeep import keep_up
from kbroker.metadata.publisher import MetadataPublisher
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.net_ports import Env
from kbroker.security.connecting import PeerSecurity
from kbroker.storage.log_directory import LogDirectory
from wire.messages.broker_registration import Endpoint

logger = get_logger(__name__)


class Membership(Protocol):
    """A broker's part in its cluster.

    controller  what the broker asks
    metadata    publishes the images
    lifecycle   the broker's registration
    """

    @property
    def controller(self) -> ControllerPort: ...

    @property
    def metadata(self) -> MetadataPublisher: ...

    @property
    def lifecycle(self) -> BrokerLifecycle: ...

    def loading(self) -> AbstractAsyncContextManager[object]:
        """Publish no image inside the block, in which the broker loads its logs and adds its listeners."""
        ...

    async def enter(self, nursery: trio.Nursery, endpoints: Sequence[Endpoint]) -> None:
        """Join the cluster, fenced, after the logs are loaded."""
        ...

    async def close(self) -> None:
        """Close the metadata log, after the tasks have ended."""
        ...


class OwnController:
    """A broker with the controller in its process."""

    def __init__(self, env: Env, settings: Settings, directory: LogDirectory, controller: EmbeddedController) -> None:
        self.controller = controller
        self.metadata = controller.publisher
        self.lifecycle = BrokerLifecycle(
            controller,
            controller.publisher,
            env=env,
            broker_id=settings.node_id,
            cluster_id=directory.identity.cluster_id,
        )
        self._env = env
        self._settings = settings
        self._directory = directory

    def loading(self) -> AbstractAsyncContextManager[object]:
        return nullcontext()

    async def enter(self, nursery: trio.Nursery, endpoints: Sequence[Endpoint]) -> None:
        await nursery.start(self.controller.run)
        incarnation_id = self.controller.sessions.own_incarnation = self._env.new_uuid()
        await self.lifecycle.register(
            incarnation_id=incarnation_id,
            endpoints=endpoints,
            log_dirs=[self._directory.identity.directory_id],
            rack=self._settings.server.broker_rack,
        )
        is_followed = bool(self._settings.listeners.controllers)
        nursery.start_soon(
            partial(keep_up, self.controller, self._env, self._settings.metadata, is_followed=is_followed)
        )

    async def close(self) -> None:
        await self.controller.close()


async def with_own_controller(
    env: Env, settings: Settings, directory: LogDirectory, listeners: Sequence[Endpoint]
) -> OwnController:
    """Open the metadata log of a node that is controller too; `listeners` are the controller's.

    Errors  UnusableMetadata, OSError
    """
    controller = await controller_of(env, settings, directory, listeners)
    return OwnController(env, settings, directory, controller)


class QuorumMember:
    """A broker whose controllers are other processes."""

    def __init__(self, env: Env, settings: Settings, directory: LogDirectory, observer: MetadataObserver) -> None:
        self.metadata = observer.publisher
        self.controller = RemoteController(
            env,
            observer,
            node_id=settings.node_id,
            request_timeout_ms=settings.server.request_timeout_ms,
            # As in Kafka: longer attempts would not keep the broker's session alive.
            attempt_timeout_ms=min(
                settings.metadata.controller_socket_timeout_ms, settings.metadata.broker_session_timeout_ms
            ),
        )
        self.lifecycle = BrokerLifecycle(
            self.controller,
            observer.publisher,
            env=env,
            broker_id=settings.node_id,
            cluster_id=directory.identity.cluster_id,
            features=FEATURES_IN_A_QUORUM,
            shares_disk=False,
        )
        self._observer = observer

    def loading(self) -> AbstractAsyncContextManager[object]:
        return self._observer.paused()

    async def enter(self, nursery: trio.Nursery, endpoints: Sequence[Endpoint]) -> None:
        """Nothing is left to do: the broker has registered before it loaded its logs."""

    async def close(self) -> None:
        self.controller.close()
        await self._observer.close()


async def join_quorum(
    env: Env,
    settings: Settings,
    directory: LogDirectory,
    nursery: trio.Nursery,
    endpoints: Sequence[Endpoint],
    *,
    security: PeerSecurity | None = None,
) -> QuorumMember:
    """Follow the controllers' metadata, register, and wait until this broker has replayed its registration. Tasks that
    follow the metadata and send heartbeats run in the nursery.

    Errors  KafkaError, with a message for the operator; UnusableMetadata, OSError
    """
    config = settings.metadata
    follower = await env.run_blocking(
        partial(
            open_follower,
            directory.path,
            disk=env.disk,
            config=config,
            timestamp_ms=env.timestamp_ms(),
            clean_shutdown=directory.was_clean,
            reserve=directory.reserve,
            state=directory.state,
            report=logger.warning,
        )
    )
    observer = MetadataObserver(
        env,
        follower,
        _quorum_view(settings, security, epoch=follower.log.epoch),
        cluster_id=directory.identity.cluster_id,
        node_id=settings.node_id,
        directory_id=directory.identity.directory_id,
        config=config,
    )
    member = QuorumMember(env, settings, directory, observer)
    await nursery.start(observer.run)
    nursery.start_soon(member.controller.run)
    await observer.wait_until_caught_up()
    refuse_unsupported(observer.publisher.image.features)
    previous_epoch = directory.previous_broker_epoch
    await env.run_blocking(directory.begin)
    await member.lifecycle.register(
        incarnation_id=env.new_uuid(),
        endpoints=endpoints,
        log_dirs=[directory.identity.directory_id],
        rack=settings.server.broker_rack,
        previous_epoch=previous_epoch,
        timeout_ms=config.initial_broker_registration_timeout_ms,
    )
    observer.publisher.add_listener(member.lifecycle.on_image)
    logger.info("registered with the controller", broker=settings.node_id, epoch=member.lifecycle.epoch)
    nursery.start_soon(partial(member.lifecycle.run, interval_ms=config.broker_heartbeat_interval_ms))
    await member.lifecycle.catch_up()
    return member


async def find_cluster_id(env: Env, settings: Settings, security: PeerSecurity | None = None) -> str:
    """The id of the cluster to whose controllers the settings point. Errors: KafkaError if none answers."""
    addresses = _quorum_view(settings, security, epoch=0)
    return await cluster_id_of(env, addresses, settings.metadata, client_id=str(settings.node_id))


def _quorum_view(settings: Settings, security: PeerSecurity | None, *, epoch: int) -> QuorumView:
    listener = settings.listeners.controller_name
    assert listener is not None, "a broker without a controller names its listener"
    return QuorumView(quorum_of(settings.server, settings.listeners), listener=listener, epoch=epoch, security=security)
