"""The observer of a quorum: a broker without a controller of its own follows the metadata log of the controllers.

One task finds the leader, fetches from it, stores and applies what it sends (metadata_follower.py), and publishes the
images. If the leader does not answer, the task asks one known controller after another; every answer names the leader
(quorum_view.py). A Fetch waits at the leader until there are records, so an idle cluster costs two Fetches a second.

If the leader no longer has the records that the observer needs, it names a snapshot. The observer fetches its file and
continues after it.

Source: KIP-595, KIP-630; KafkaRaftClient and MetadataLoader of Apache Kafka 4.3.1.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

import trio

from kbroker.client.streaming import Connection, ConnectionClosed
from kbroker.config.metadata import MetadataSettings
from kbroker.controller.clock_check import ClockCheck
from kbroker.controller.metadata_follower import MetadataFollower
from kbroker.controller.quorum_view import Address, QuorumView
from kbroker.controller.snapshot_task import write_snapshots
from kbroker.controller.snapshots import SnapshotId
from kbroker.metadata.errors import UnusableMetadata
from kbroker.metadata.image import Image
from kbroker.metadata.names import CLUSTER_METADATA_TOPIC
from kbroker.metadata.parts import CLUSTER_METADATA_TOPIC_ID
from kbroker.metadata.publisher import MetadataPublisher
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.limits import RateLimitedLog
from kbroker.runtime.net_ports import Env
from kbroker.runtime.retrying import BackOff
from kbroker.security.connecting import PeerSecurity, open_stream
from wire.client import UnsupportedApi
from wire.errors import ErrorCode, KafkaError, Malformed, code_of
from wire.messages.api_versions import ApiVersionsRequest
from wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData, ReplicaState
from wire.messages.fetch_snapshot import FetchSnapshotRequest, PartitionSnapshot, TopicSnapshot
from wire.messages.fetch_snapshot import SnapshotId as FetchedSnapshotId

MAX_WAIT_MS: Final = 500
MAX_BACKOFF_MS: Final = 1_000
MAX_RESPONSE_BYTES: Final = 64 << 20
"""The largest response of a controller; one batch of metadata has at most 8 MiB."""
CONTROLLER_ENDPOINTS: Final = 2
"""The endpoint type in DescribeCluster that names the controllers."""

NO_ANSWER: Final = (OSError, ConnectionClosed, Malformed, UnsupportedApi, trio.TooSlowError)
"""What a connection to a controller that is dead, hangs or speaks another protocol raises."""

_LOG_INTERVAL_MS: Final = 30_000
_NOT_LEADING: Final = frozenset({
    ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.NOT_LEADER_OR_FOLLOWER
})  # fmt: skip
"""The controller does not lead the epoch that the observer knows; the answer says who leads which one."""

_CLUSTER_ID_HINT: Final = (
    ", or start the broker with --cluster-id ID: Apache Kafka's controllers tell the id of the cluster only to "
    "principals that may Alter it"
)

T = TypeVar("T")

logger = get_logger(__name__)


async def connect(
    env: Env, address: Address, *, client_id: str, timeout_ms: int, security: PeerSecurity | None
) -> Connection:
    """A connection to a controller that knows the versions of its APIs. Errors: NO_ANSWER."""
    with trio.fail_after(timeout_ms / 1000):
        stream = await open_stream(env, *address, security)
        connection = Connection(stream, client_id=client_id, max_response_bytes=MAX_RESPONSE_BYTES)
        try:
            # Version 3 is the first with a client's name, and every controller knows it.
            request = ApiVersionsRequest(client_software_name="kbroker", client_software_version="1")
            connection.protocol.learn_versions(await connection.ask(request, version=3))
        except BaseException:
            connection.close()
            raise
    return connection


async def cluster_id_of(env: Env, addresses: QuorumView, config: MetadataSettings, *, client_id: str) -> str:
    """The cluster id that the controllers name, for a broker with an empty data directory.

    Errors  KafkaError REQUEST_TIMED_OUT if none answers within initial.broker.registration.timeout.ms
    """
    deadline_ms = env.now_ms() + config.initial_broker_registration_timeout_ms
    backoff = BackOff(config.controller_quorum_retry_backoff_ms)
    while True:
        address = addresses.next_address()
        try:
            timeout_ms = config.controller_quorum_request_timeout_ms
            connection = await connect(
                env, address, client_id=client_id, timeout_ms=timeout_ms, security=addresses.security
            )
            with trio.fail_after(timeout_ms / 1000):
                try:
                    request = DescribeClusterRequest(
                        include_cluster_authorized_operations=False, endpoint_type=CONTROLLER_ENDPOINTS
                    )
                    answer: DescribeClusterResponse = await connection.ask(request)
                finally:
                    connection.close()
            if not answer.error_code:
                return answer.cluster_id
            check_rights(code_of(answer.error_code), address, hint=_CLUSTER_ID_HINT)
            reason: object = code_of(answer.error_code).name
        except NO_ANSWER as error:
            reason = describe(error)
        if env.now_ms() >= deadline_ms:
            raise no_controller(address, reason, config.initial_broker_registration_timeout_ms)
        await env.sleep_ms(backoff.next_ms(MAX_BACKOFF_MS))


def check_rights(code: ErrorCode, address: Address, *, hint: str = "") -> None:
    """Raise KafkaError with the remedy if a controller does not let this node do what nodes do."""
    if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
        raise KafkaError(
            code,
            f"the controller at {address} denies what this broker asks: add the principal of its connection "
            f"(User:ANONYMOUS on a listener without authentication) to super.users of the controllers{hint}",
        )


def no_controller(address: Address, reason: object, waited_ms: int) -> KafkaError:
    """The error if no controller has answered."""
    return KafkaError(
        ErrorCode.REQUEST_TIMED_OUT,
        f"no controller has answered within {waited_ms} ms (initial.broker.registration.timeout.ms); the last one "
        f"asked was {address}: {reason}. Check controller.quorum.bootstrap.servers and controller.quorum.voters",
    )


def data_bytes(records: Any) -> bytes:
    """The records in a response, which may be None."""
    return bytes(records or b"")


def describe(error: BaseException) -> str:
    """One of NO_ANSWER for the log."""
    match error:
        case trio.TooSlowError():
            return "no answer"
        case ConnectionClosed():
            return "it closed the connection"
        case _:
            return str(error) or type(error).__name__


class MetadataObserver:
    """See the module docstring. `run` it; the other methods are for other tasks.

    publisher  publishes the images
    quorum     the controllers
    """

    def __init__(
        self,
        env: Env,
        follower: MetadataFollower,
        quorum: QuorumView,
        *,
        cluster_id: str,
        node_id: int,
        directory_id: UUID,
        config: MetadataSettings,
    ) -> None:
        self.publisher = MetadataPublisher(follower.image)
        self.quorum = quorum
        self.config = config
        self._env = env
        self._follower = follower
        self._cluster_id = cluster_id
        self._node_id = node_id
        self._directory_id = directory_id
        self._client_id = f"raft-client-{node_id}"
        self._log_lock = trio.Lock()
        self._publishing = trio.Lock()
        self._is_paused = False
        self._clock_check = ClockCheck(env)
        self._changed = trio.Event()
        self._followed = (-1, -1)
        self._last_failure: tuple[Address, str] | None = None
        self._log_limit = RateLimitedLog(interval_ms=_LOG_INTERVAL_MS)
        quorum.on_voters(follower.image.voters)

    # -- for other tasks

    async def wait_until(self, is_true: Callable[[], bool]) -> None:
        """Wait for a condition that depends on the leader or on the published image."""
        while not is_true():
            await self._changed.wait()

    async def wait_until_caught_up(self) -> None:
        """Wait until all metadata that is committed is published for the first time.

        Errors  KafkaError REQUEST_TIMED_OUT after initial.broker.registration.timeout.ms
        """
        timeout_ms = self.config.initial_broker_registration_timeout_ms
        with trio.move_on_after(timeout_ms / 1000):
            await self.wait_until(lambda: self._follower.is_caught_up and self.publisher.image is self._follower.image)
            return
        address, reason = self._last_failure or (self.quorum.next_address(), "it knows no leader")
        raise no_controller(address, reason, timeout_ms)

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[Image]:
        """Publish nothing inside the block, and the newest image after it. The observer continues to fetch."""
        async with self._publishing:
            self._is_paused = True
        try:
            yield self.publisher.image
        finally:
            self._is_paused = False
        await self._publish()

    async def close(self) -> None:
        """Sync and close the log; `run` must have ended."""
        await self._env.run_blocking(self._follower.log.close)

    # -- following

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Follow the quorum until cancelled. Raises UnusableMetadata if the metadata cannot be followed."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(write_snapshots, self._env, self._follower.log, self.publisher, self._log_lock)
            task_status.started()
            await self._follow()

    async def _follow(self) -> None:
        backoff = BackOff(self.config.controller_quorum_retry_backoff_ms)
        while True:
            address = self.quorum.next_address()
            try:
                await self._fetch_from(address, backoff)
                await self._env.sleep_ms(backoff.next_ms(MAX_BACKOFF_MS))
                continue  # another controller leads
            except NO_ANSWER as error:
                reason = describe(error)
            except KafkaError as error:
                reason = error.message or error.code.name
            self._last_failure = address, reason
            self.quorum.on_failure(address)
            self._notify()
            left_out = self._log_limit.admit(address, now_ms=self._env.now_ms())
            if left_out is not None:
                logger.warning(
                    "cannot follow a controller; asking others", address=address, why=reason, left_out=left_out
                )
            await self._env.sleep_ms(backoff.next_ms(MAX_BACKOFF_MS))

    async def _fetch_from(self, address: Address, backoff: BackOff) -> None:
        """Follow one controller as long as it leads. Returns when another one does. Errors: NO_ANSWER, KafkaError."""
        config = self.config
        connection = await connect(
            self._env,
            address,
            client_id=self._client_id,
            timeout_ms=config.controller_quorum_request_timeout_ms,
            security=self.quorum.security,
        )
        has_all = False  # the last answer on this connection left out nothing, so the next records are new
        try:
            while True:
                timeout_ms = config.controller_quorum_fetch_timeout_ms
                with trio.fail_after(timeout_ms / 1000):
                    response = await connection.ask(self._fetch_request(max_wait_ms=min(MAX_WAIT_MS, timeout_ms // 2)))
                data = self._partition(response, address)
                code = code_of(data.error_code)
                epoch = self.quorum.epoch
                await self._note_leader(data, response.node_endpoints, address)
                if code in _NOT_LEADING:
                    if self.quorum.leader == address and self.quorum.epoch > epoch:
                        continue
                    if self.quorum.leader not in (None, address):
                        return
                    raise KafkaError(code, "it does not lead, and knows no leader")
                if code:
                    raise KafkaError(code)
                backoff.reset()
                if self._followed != (self.quorum.leader_id, self.quorum.epoch):
                    self._followed = self.quorum.leader_id, self.quorum.epoch
                    logger.info("following the quorum's leader", leader=self._followed[0], epoch=self._followed[1])
                has_all = await self._take(data, connection, are_new=has_all)
                if self.quorum.leader != address:
                    return
        finally:
            connection.close()

    def _fetch_request(self, *, max_wait_ms: int) -> FetchRequest:
        log = self._follower.log
        partition = FetchPartition(
            partition=0,
            current_leader_epoch=self.quorum.epoch,
            fetch_offset=log.log_end_offset,
            last_fetched_epoch=log.last_epoch,
            partition_max_bytes=self.config.controller_quorum_fetch_max_bytes,
            replica_directory_id=self._directory_id,
            high_watermark=self._follower.high_watermark,
        )
        return FetchRequest(
            cluster_id=self._cluster_id,
            replica_state=ReplicaState(replica_id=self._node_id),
            max_wait_ms=max_wait_ms,
            min_bytes=0,
            max_bytes=self.config.controller_quorum_fetch_max_bytes,
            topics=[
                FetchTopic(topic=CLUSTER_METADATA_TOPIC, topic_id=CLUSTER_METADATA_TOPIC_ID, partitions=[partition])
            ],
        )

    def _partition(self, response: FetchResponse, address: Address) -> PartitionData:
        code = code_of(response.error_code)
        if code == ErrorCode.INCONSISTENT_CLUSTER_ID:
            text = (
                f"the controller at {address} belongs to another cluster than this data directory "
                f"({self._cluster_id}); correct controller.quorum.bootstrap.servers and controller.quorum.voters, or "
                "start with an empty data directory"
            )
            if self._followed == (-1, -1):
                raise UnusableMetadata(text)
            raise KafkaError(code, text)
        check_rights(code, address)
        if code:
            raise KafkaError(code)
        partitions = [partition for topic in response.responses for partition in topic.partitions]
        if len(partitions) != 1:
            raise Malformed(f"a Fetch of the metadata log has {len(partitions)} partitions in its answer")
        return partitions[0]

    async def _note_leader(self, data: PartitionData, endpoints: Iterable[Any], address: Address) -> None:
        quorum, current = self.quorum, data.current_leader
        if current is None:
            return
        found = [(one.node_id, one.host, one.port) for one in endpoints]
        if not data.error_code and current.leader_id not in {one[0] for one in found}:
            found.append((current.leader_id, *address))  # it has answered as the leader
        if not quorum.on_leader(current.leader_id, current.leader_epoch, found):
            return
        if quorum.epoch > self._follower.log.epoch:
            async with self._log_lock:
                await self._env.run_blocking(self._follower.note_leader, quorum.leader_id, quorum.epoch)
        self._notify()

    async def _take(self, data: PartitionData, connection: Connection, *, are_new: bool) -> bool:
        """Store and apply the leader's answer. Returns whether this node then has all that the leader has committed.

        are_new  the leader wrote the records in the answer after its previous answer, so just now
        """
        follower = self._follower
        if data.diverging_epoch is not None and data.diverging_epoch.epoch >= 0:
            truncate = partial(
                follower.truncate, epoch=data.diverging_epoch.epoch, end_offset=data.diverging_epoch.end_offset
            )
            offset = await self._changing_log(truncate)
            logger.info("truncated the metadata log to the leader's", offset=offset, leader=self.quorum.leader_id)
            await self._env.sleep_ms(self.config.controller_quorum_retry_backoff_ms)
        elif data.snapshot_id is not None and data.snapshot_id.end_offset >= 0 <= data.snapshot_id.epoch:
            await self._install(SnapshotId(data.snapshot_id.end_offset, data.snapshot_id.epoch), connection)
        else:
            append = partial(
                follower.append,
                data_bytes(data.records),
                high_watermark=data.high_watermark,
                timestamp_ms=self._env.timestamp_ms(),
            )
            # An answer without records only moves the high watermark.
            await self._changing_log(append) if data.records else append()
            if data.records and are_new:
                self._clock_check.compare(self._env.timestamp_ms(), follower.written_ms)
            await self._publish()
            return follower.is_caught_up
        return False

    async def _install(self, snapshot: SnapshotId, connection: Connection) -> None:
        """Fetch a snapshot, and continue after it. Returns without it if the leader has deleted it."""
        env, follower = self._env, self._follower
        partial_snapshot = await env.run_blocking(follower.receive_snapshot, snapshot)
        try:
            while True:
                asked = PartitionSnapshot(
                    partition=0,
                    current_leader_epoch=self.quorum.epoch,
                    snapshot_id=FetchedSnapshotId(end_offset=snapshot.end_offset, epoch=snapshot.epoch),
                    position=partial_snapshot.size,
                    replica_directory_id=self._directory_id,
                )
                request = FetchSnapshotRequest(
                    cluster_id=self._cluster_id,
                    replica_id=self._node_id,
                    max_bytes=self.config.controller_quorum_fetch_snapshot_max_bytes,
                    topics=[TopicSnapshot(name=CLUSTER_METADATA_TOPIC, partitions=[asked])],
                )
                with trio.fail_after(self.config.controller_quorum_request_timeout_ms / 1000):
                    response = await connection.ask(request)
                parts = [part for topic in response.topics for part in topic.partitions]
                code = code_of(response.error_code or (parts[0].error_code if parts else 0))
                if code == ErrorCode.SNAPSHOT_NOT_FOUND:
                    await env.sleep_ms(self.config.controller_quorum_retry_backoff_ms)
                    return
                if code or len(parts) != 1:
                    raise KafkaError(
                        code or ErrorCode.INVALID_REQUEST, f"cannot fetch a metadata snapshot: {code.name}"
                    )
                data = data_bytes(parts[0].unaligned_records)
                if parts[0].position != partial_snapshot.size or not data:
                    raise Malformed("a FetchSnapshot answer has other bytes than those that were requested")
                await env.run_blocking(partial_snapshot.append, data)
                if partial_snapshot.size >= parts[0].size:
                    break
            install = partial(follower.install, partial_snapshot, timestamp_ms=env.timestamp_ms(), now_ms=env.now_ms())
            await self._changing_log(install)
            logger.info("installed a metadata snapshot", end_offset=snapshot.end_offset, bytes=partial_snapshot.size)
            await self._publish()
        finally:
            partial_snapshot.abandon()

    async def _changing_log(self, change: Callable[[], T]) -> T:
        async with self._log_lock:
            return await self._env.run_blocking(change)

    async def _publish(self) -> None:
        """Publish what is applied, unless publishing is paused."""
        if self._is_paused:
            return
        async with self._publishing:
            image = self._follower.image
            if image.voters is not self.publisher.image.voters:
                self.quorum.on_voters(image.voters)
            await self.publisher.publish(image)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
