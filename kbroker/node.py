"""One node: settings, data directory, controller, broker and listeners, in one tree of nurseries.

Start-up order: settings, addresses, the data directory with its lock, the metadata log, the logs of the partitions, the
broker registration. The addresses are bound before anything is written, so a port in use leaves the disk unchanged.
The node listens last; until then connections are refused at once and clients retry. Shutdown runs in reverse order and
ends by writing the clean-shutdown marker, so the next start skips recovery.

A second signal, or a signal before the node serves, ends the process at once. If the data directory fails, the node
sends errors to its clients for a moment and then ends. In both cases the next start recovers the logs.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import trio

from kbroker.broker import Broker
from kbroker.broker.closing import close_logs
from kbroker.broker.directory_assignments import report_directories
from kbroker.broker.log_tasks import start_log_tasks
from kbroker.broker.membership import Membership, OwnController, find_cluster_id, join_quorum, with_own_controller
from kbroker.broker.recovery import RecoveryProgress, load_partitions
from kbroker.broker.tier_lifecycle import TierRefused, refuse_tiered_topics_without_system
from kbroker.config import Settings
from kbroker.config.catalogue import is_secret
from kbroker.config.container import Container
from kbroker.config.values import HIDDEN, ConfigError
from kbroker.controller.embedded import EmbeddedController
from kbroker.controller.removed_topics import removed_topics
from kbroker.handlers import Handler
from kbroker.metadata.delta import Delta
from kbroker.metadata.errors import UnusableMetadata
from kbroker.metadata.image import Image
from kbroker.metadata.publisher import MetadataPublisher
from kbroker.replication.replicas import Replicas
from kbroker.runtime import event_log as logs
from kbroker.runtime.disk import keep_memory_and_files_private, raise_descriptor_limit
from kbroker.runtime.env import RealEnv
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.memory import keep_freed_memory, spare_lasting_objects
from kbroker.runtime.metrics import Metrics
from kbroker.runtime.net_ports import Env
from kbroker.runtime.turns import Turns
from kbroker.security.securing import NodeSecurity, pages_have_tls
from kbroker.server.binding import BoundListener, bind, listen
from kbroker.server.broker_listener import server_of
from kbroker.server.controller_listener import serve_controller
from kbroker.server.controller_role import run_controller
from kbroker.server.tcp import Server
from kbroker.storage.durable import lacks_space
from kbroker.storage.formatting import META_PROPERTIES
from kbroker.storage.log_directory import LogDirectory
from wire.errors import KafkaError

STOP_GRACE_MS = 2_000
FAILURE_NOTICE_MS = 1_000
EXIT_INTERRUPTED = 130
EXIT_TERMINATED = 143

OnReady = Callable[[str, int], None]
OnStarted = Callable[[int, str, int], None]
OnImage = Callable[[Image, Delta], None]

logger = get_logger(__name__)


class NodeFailed(Exception):
    """The node cannot start or continue; the message is for the operator."""


def run_node(
    settings: Settings,
    *,
    log_format: str,
    log_level: str,
    on_ready: OnStarted,
    container: Container | None = None,
    cluster_id: str | None = None,
) -> int:
    """Run a node until a signal ends it; return the exit code.

    Shape   container holds the settings from environment variables, None outside a container; cluster_id is the id for
            a new data directory
    Errors  NodeFailed
    """
    logs.configure(as_json=log_format == "json", level=log_level.upper())
    if container is not None:
        # The usual default, a sibling of the data directory, would be outside the container's volume.
        settings = settings.with_tier_directory(f"{settings.data_directory}/tier")
    for warning in (*settings.warnings, *(() if container is None else container.warnings)):
        logger.warning(warning)
    if container is not None:
        # Settings come from three places and the defaults: log the merged result.
        for name, text in sorted(settings.layers.static.items()):
            logger.info("setting", name=name, value=HIDDEN if is_secret(name) else text)
    keep_memory_and_files_private()
    raise_descriptor_limit()
    keep_freed_memory()
    env = RealEnv()
    spare_lasting_objects(env.now_ns)
    node = Node(env, settings, cluster_id=cluster_id)
    trio.run(_run_until_signal, node, partial(on_ready, settings.node_id))
    if env.abandoned:
        # All data is written and closed, but a normal exit would wait for threads that hang in the tier's store.
        logger.warning("abandoned calls to the tier's storage", calls=env.abandoned)
        sys.stdout.flush()
        os._exit(0)
    return 0


async def _run_until_signal(node: Node, on_ready: OnReady) -> None:
    failure: NodeFailed | None = None
    # Without TLS, SIGHUP ends the process, as when its terminal is closed.
    protocols = node.settings.listeners.protocols.values()
    has_tls = pages_have_tls(node.settings) or any(protocol.endswith("SSL") for protocol in protocols)
    caught = (signal.SIGTERM, signal.SIGINT, *((signal.SIGHUP,) if has_tls else ()))
    with trio.open_signal_receiver(*caught) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_stop_on_signal, node, signals)
            try:
                await node.run(on_ready=on_ready)
            except NodeFailed as error:
                failure = error
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


async def _stop_on_signal(node: Node, signals: AsyncIterator[int]) -> None:
    first = True
    async for number in signals:
        if number == signal.SIGHUP:
            logger.info("looking for changed certificates", signal="SIGHUP")
            if node.security is not None:
                node.security.request_renewal()
            continue
        if not first or not node.is_serving:
            # Start-up needs no orderly stop, and a thread that recovers logs cannot be interrupted.
            logger.warning("stopping at once", signal=signal.Signals(number).name)
            os._exit(EXIT_INTERRUPTED if number == signal.SIGINT else EXIT_TERMINATED)
        first = False
        logger.info("stopping", signal=signal.Signals(number).name)
        node.stop()


class Node:
    """The only node of a cluster: `run` it, and `stop` it from another task.

    Shape  broker is the domain that the listeners serve; None until the logs are open
    Shape  is_serving: the node has begun to accept connections; handlers serve the clients of its broker, all of
           kbroker.handlers by default; with pages_on_demand the HTTP pages are imported when they are first asked for
    """

    def __init__(
        self,
        env: Env,
        settings: Settings,
        *,
        cluster_id: str | None = None,
        handlers: Mapping[int, Handler[Any]] | None = None,
        pages_on_demand: bool = False,
    ) -> None:
        self.env = env
        self.settings = settings
        self._new_cluster_id = cluster_id
        self._handlers = handlers
        self._pages_on_demand = pages_on_demand
        self.metrics = Metrics()
        self.turns = Turns(env.now_ns)
        self.security: NodeSecurity | None = None
        self.broker: Broker | None = None
        self.server: Server | None = None
        self.recovery = RecoveryProgress()
        self.directory: LogDirectory | None = None
        self.is_serving = False
        self.pages_address: str | None = None
        self._metadata: MetadataPublisher | None = None
        self._stop = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None

    @property
    def image(self) -> Image | None:
        """The newest metadata, None until they are loaded."""
        return None if self._metadata is None else self._metadata.image

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Make `run` shut down in order. Idempotent."""
        self._stop.set()

    async def run(self, *, on_ready: OnReady) -> None:
        """Serve until `stop`. Call on_ready(host, port) with the first listener's address once it accepts connections.

        Errors  NodeFailed
        """
        failures: list[Exception] = []
        try:
            with ExitStack() as cleanup:
                addresses = self.settings.listeners
                security = self.security = await self.env.run_blocking(NodeSecurity, self.env, self.settings)
                bind_all = partial(bind, self.env, self.settings, cleanup)
                controllers = await bind_all(addresses.controllers, addresses.advertised_controllers)
                bound = await bind_all(addresses.bound, addresses.advertised)
                async with self._pages() as on_image:
                    if self._new_cluster_id is None and not self.settings.server.is_controller:
                        await self._find_cluster_id(security)
                    self.directory = directory = await self.env.run_blocking(self._open_directory)
                    cleanup.callback(directory.abandon)
                    if self.settings.server.is_broker:
                        await self._run(directory, bound, controllers, on_ready, on_image)
                    else:
                        await self._run_controller(directory, controllers, on_ready, security)
        except* (UnusableMetadata, KafkaError, OSError, NodeFailed, TierRefused, ConfigError) as group:
            failures = _leaves(group)
        if failures:
            raise NodeFailed("; ".join(str(failure) for failure in failures)) from failures[0]

    async def _find_cluster_id(self, security: NodeSecurity) -> None:
        """Take the id for an empty data directory from the controllers."""
        if not self.env.disk.exists(f"{self.settings.data_directory}/{META_PROPERTIES}"):
            self._new_cluster_id = await find_cluster_id(self.env, self.settings, security.controllers)

    def _open_directory(self) -> LogDirectory:
        settings, env = self.settings, self.env
        try:
            return LogDirectory(
                settings.data_directory,
                disk=env.disk,
                node_id=settings.node_id,
                new_cluster_id=self._new_cluster_id,
                new_uuid=env.new_uuid,
                open_files_limit=settings.limits.kbroker_max_open_files,
                reserve_bytes=settings.limits.kbroker_metadata_reserve_bytes,
                on_failure=self._on_directory_failure,
                report=logger.warning,
                jitter_ms=lambda bound: env.random.randrange(bound) if bound > 0 else 0,
                begins=False,
            )
        except KafkaError as error:
            raise NodeFailed(error.message) from error

    def _on_directory_failure(self, error: OSError) -> None:
        logger.error(
            "the data directory has failed; the node stops", directory=self.settings.data_directory, error=error
        )
        if self._token is not None:  # a thread may call this
            if self.broker is not None:
                # Wake the requests that wait for records or replicas: they fail now.
                self._token.run_sync_soon(self.broker.wake_all)
            self._token.run_sync_soon(self.stop)

    def _pages(self) -> AbstractAsyncContextManager[OnImage | None]:
        """Serve the HTTP pages if the settings ask for them; yields the pages' image listener, or None."""
        if self.settings.observability.kbroker_http_listener is None:
            return nullcontext()
        from kbroker.web.serving import serving_pages  # noqa: PLC0415  (not imported by a broker without pages)

        return serving_pages(self, partial(listen, self.env, self.settings), on_demand=self._pages_on_demand)

    async def _run_controller(
        self, directory: LogDirectory, listeners: list[BoundListener], on_ready: OnReady, security: NodeSecurity
    ) -> None:
        self._token = trio.lowlevel.current_trio_token()

        def on_serving(controller: EmbeddedController) -> None:
            self._metadata = controller.publisher
            self.is_serving = True
            first = listeners[0][1][0]
            on_ready(first.host, first.port)

        await run_controller(
            self.env,
            self.settings,
            directory,
            listeners,
            metrics=self.metrics,
            turns=self.turns,
            stopping=self._stop,
            on_serving=on_serving,
            security=security,
        )
        _refuse_failed(directory)

    async def _run(
        self,
        directory: LogDirectory,
        bound: list[BoundListener],
        controllers: list[BoundListener],
        on_ready: OnReady,
        on_page_image: OnImage | None,
    ) -> None:
        env, settings, security = self.env, self.settings, self.security
        assert security is not None
        cluster_id = directory.identity.cluster_id
        if self._new_cluster_id not in (None, cluster_id):
            logger.warning(
                "the data directory has another cluster id; keeping it",
                cluster_id=cluster_id,
                asked=self._new_cluster_id,
            )
        endpoints = [endpoint for endpoint, _ in bound]
        async with trio.open_nursery() as nursery:
            member: Membership
            if settings.server.is_controller:
                member = await with_own_controller(env, settings, directory, [endpoint for endpoint, _ in controllers])
                if not directory.was_used:
                    # This file also shows the next start that a metadata log must exist.
                    await env.run_blocking(directory.checkpoints.write_recovery_points)
            else:
                member = await join_quorum(env, settings, directory, nursery, endpoints, security=security.controllers)
            async with member.loading():
                broker = await self._load(directory, member, security)
                if not settings.server.is_controller:
                    report_directories(nursery, broker)
                    nursery.start_soon(broker.producer_ids.keep)
                server = self.server = server_of(broker, self.metrics, self._handlers)
                if on_page_image is not None:
                    member.metadata.add_listener(on_page_image)
            await member.enter(nursery, endpoints)
            await nursery.start(broker.groups.run)
            await nursery.start(broker.transactions.run)
            await nursery.start(broker.marker_sender.run)
            await nursery.start(broker.fetchers.run)
            nursery.start_soon(broker.isr_changes.run)
            quorum_server: Server | None = None
            if controllers:
                assert isinstance(member, OwnController)
                quorum_server = await serve_controller(
                    nursery,
                    member.controller,
                    controllers,
                    env=env,
                    settings=settings,
                    cluster_id=cluster_id,
                    metrics=self.metrics,
                    turns=self.turns,
                    security=security,
                    authorizer=broker.authorizer,
                )
            await broker.lifecycle.unfence()
            await broker.tier.start(nursery)
            start_log_tasks(nursery, directory, broker)
            await nursery.start(server.run)
            nursery.start_soon(security.run)
            for endpoint, listeners in bound:
                for listener in listeners:
                    listener.listen()
                    server.add(listener, name=endpoint.name, security=security.of(endpoint.name))
            self.is_serving = True
            first = bound[0][1][0]
            on_ready(first.host, first.port)
            await self._stop.wait()
            if directory.state.failure is not None:
                # The only data directory failed (D8). Send clients errors for a moment, then end as a kill would.
                await env.sleep_ms(FAILURE_NOTICE_MS)
                await server.stop(grace_ms=FAILURE_NOTICE_MS)
                _refuse_failed(directory)
            hands_over = len(broker.image.brokers) > 1
            if hands_over:
                # Serve clients until other brokers lead the partitions.
                with _ignoring_full_disk("the controller fences this broker later"):
                    await broker.lifecycle.shut_down()
            await server.stop(grace_ms=STOP_GRACE_MS)
            await broker.tier.stop()
            if not hands_over:
                with _ignoring_full_disk("the next start fences this broker"):
                    await broker.lifecycle.shut_down()
            if quorum_server is not None:
                await quorum_server.stop(grace_ms=STOP_GRACE_MS)
            nursery.cancel_scope.cancel()
        await broker.tier.close()
        with _ignoring_full_disk("the next start repairs the metadata log"):
            await member.close()
        await close_logs(env, directory)
        await env.run_blocking(partial(broker.replicas.close, broker_epoch=broker.lifecycle.epoch))
        logger.info("stopped")

    async def _load(self, directory: LogDirectory, member: Membership, security: NodeSecurity) -> Broker:
        """Load the partitions that the metadata lists, and make the broker."""
        env, settings, metadata = self.env, self.settings, member.metadata
        refuse_tiered_topics_without_system(metadata.image, settings.tier)
        replicas = Replicas(
            env=env, directory=directory, broker_id=settings.node_id, settings=settings, image=metadata.image
        )
        find_removed = partial(removed_topics, directory.path, disk=env.disk, report=logger.warning)
        await load_partitions(env, replicas, find_removed, self.recovery)
        if directory.stray_count:
            logger.warning(
                "stray directories are kept; restore their metadata, or remove them", directories=directory.stray_count
            )
        _refuse_failed(directory)
        broker = Broker(
            env=env,
            settings=replicas.settings,
            cluster_id=directory.identity.cluster_id,
            replicas=replicas,
            metadata=metadata,
            controller=member.controller,
            lifecycle=member.lifecycle,
            turns=self.turns,
            security=security,
        )
        security.credentials.image = lambda: metadata.image
        self._metadata = metadata
        self.broker, self._token = broker, trio.lowlevel.current_trio_token()
        metadata.add_listener(broker.on_image)
        return broker


@contextmanager
def _ignoring_full_disk(consequence: str) -> Iterator[None]:
    """Log a full disk and continue, so that the node can still stop."""
    try:
        yield
    except KafkaError as error:
        if not lacks_space(error):
            raise
        logger.warning("the disk is full", consequence=consequence, why=error.message)


def _refuse_failed(directory: LogDirectory) -> None:
    """Raise NodeFailed if the data directory has failed."""
    if directory.state.failure is not None:
        raise NodeFailed(f"the data directory {directory.path} has failed: {directory.state.failure}")


def _leaves(group: BaseExceptionGroup[Exception]) -> list[Exception]:
    found: list[Exception] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]
    return found
