"""This broker's registration and heartbeats.

A broker starts fenced and leads nothing. It asks to be unfenced once it has replayed its registration, and asks to shut
down before it stops. See kbroker/controller/brokers.py for what the controller does.

A controller in another process fences a broker whose heartbeats are missing for broker.session.timeout.ms, so `run`
sends one every broker.heartbeat.interval.ms. A fenced broker is unfenced by its next heartbeat.

Source: KIP-631; Kafka's BrokerLifecycleManager.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final
from uuid import UUID

import trio

from kbroker.controller.features import HIGHEST_METADATA_VERSION, SUPPORTED_FEATURES
from kbroker.controller.port import ControllerPort
from kbroker.metadata.delta import Delta
from kbroker.metadata.image import Image
from kbroker.metadata.parts import METADATA_VERSION_FEATURE, feature_ranges
from kbroker.metadata.publisher import MetadataPublisher
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.limits import RateLimitedLog
from kbroker.runtime.net_ports import Env
from kbroker.runtime.retrying import BackOff
from wire.errors import ErrorCode, KafkaError
from wire.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from wire.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse, Endpoint

MAX_DELAY_MS: Final = 500
SHUTDOWN_PATIENCE_MS: Final = 8_000
"""The broker stops without the controller's consent if no heartbeat was answered for this long: service managers and
containers kill a process about 10 s after they have asked it to stop."""

LOWEST_IN_A_QUORUM: Final = 21

FEATURES_IN_A_QUORUM: Final[Mapping[str, tuple[int, int]]] = {
    **SUPPORTED_FEATURES,
    "eligible.leader.replicas.version": (0, 1),
    METADATA_VERSION_FEATURE: (LOWEST_IN_A_QUORUM, HIGHEST_METADATA_VERSION),
}
"""The levels of a cluster's features with which a broker without a controller works: all of Apache Kafka 4.3, from
metadata version 3.9-IV0 on. It serves no share and streams groups, and refuses each request for one."""

_UNUSABLE: Final = frozenset({
    ErrorCode.INCONSISTENT_CLUSTER_ID, ErrorCode.INVALID_REGISTRATION, ErrorCode.UNSUPPORTED_VERSION,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
})  # fmt: skip
"""Errors that a repeated registration would meet again."""

_FINAL: Final = frozenset({ErrorCode.DUPLICATE_BROKER_REGISTRATION, ErrorCode.CLUSTER_AUTHORIZATION_FAILED})
"""Errors that end a start, because a repeated heartbeat would meet them again. A broker that serves clients ends only
after DUPLICATE_BROKER_REGISTRATION, because an administrator of the controllers can correct the other error."""

_LOG_INTERVAL_MS: Final = 60_000

logger = get_logger(__name__)


def refuse_unsupported(finalized: Mapping[str, int]) -> None:
    """Raise UNSUPPORTED_VERSION, with a message for the operator, if a cluster has finalized an unsupported level."""
    unsupported, remedies = [], []
    for name, level in sorted(finalized.items()):
        lowest, highest = FEATURES_IN_A_QUORUM.get(name, (0, 0))
        if not lowest <= level <= highest:
            unsupported.append(f"{name}={level}")
            remedies.append(f"--feature {name}={highest}")
    if not unsupported:
        return
    if finalized.get(METADATA_VERSION_FEATURE, LOWEST_IN_A_QUORUM) < LOWEST_IN_A_QUORUM:
        remedy = "raise metadata.version to 3.9-IV0 (21) or higher with `kafka-features.sh upgrade`"
    else:
        flags = " ".join(remedies)
        remedy = f"format a new cluster with `{flags}`, or lower this one with `kafka-features.sh downgrade {flags}`"
    found = ", ".join(unsupported)
    raise KafkaError(
        ErrorCode.UNSUPPORTED_VERSION, f"the cluster has finalized {found}, which kbroker does not support: {remedy}"
    )


class BrokerLifecycle:
    """The state of this broker in the controller.

    features     the supported levels of the cluster's features
    epoch        the broker epoch of this incarnation, -1 until it is registered
    shares_disk  the controller writes to this broker's disk. If that is full, a start or stop fails with
                 KAFKA_STORAGE_ERROR; if the disk of another process is full, the broker retries
    """

    def __init__(
        self,
        controller: ControllerPort,
        metadata: MetadataPublisher,
        *,
        env: Env,
        broker_id: int,
        cluster_id: str,
        features: Mapping[str, tuple[int, int]] = SUPPORTED_FEATURES,
        shares_disk: bool = True,
    ) -> None:
        self._controller = controller
        self._metadata = metadata
        self._env = env
        self.broker_id = broker_id
        self._cluster_id = cluster_id
        self.features = features
        self._shares_disk = shares_disk
        self._registration: BrokerRegistrationRequest | None = None
        self._wants_fence = True
        self._wants_shut_down = False
        self._is_awaited = trio.Event()
        self._log_limit = RateLimitedLog(interval_ms=_LOG_INTERVAL_MS)
        self.epoch = -1

    def on_image(self, image: Image, delta: Delta) -> None:
        """Log that the controller has fenced or unfenced this broker, and send a heartbeat when another one shuts down:
        it may stop when the controller knows that all others have replayed who leads its partitions now.
        """
        if delta.before.brokers is image.brokers:
            return
        for broker in image.brokers.values():
            known = delta.before.brokers.get(broker.id)
            if broker.in_controlled_shutdown and not (known is not None and known.in_controlled_shutdown):
                self._is_awaited.set()
        before, now = delta.before.brokers.get(self.broker_id), image.brokers.get(self.broker_id)
        if before is None or now is None or now.epoch != self.epoch or self._wants_shut_down:
            return
        if now.fenced and not before.fenced:
            logger.warning("the controller has fenced this broker", epoch=self.epoch)
        elif before.fenced and not now.fenced:
            logger.info("the controller has unfenced this broker", epoch=self.epoch)

    async def register(
        self,
        *,
        incarnation_id: UUID,
        endpoints: Iterable[Endpoint],
        log_dirs: Iterable[UUID],
        rack: str | None = None,
        previous_epoch: int = -1,
        timeout_ms: int = 0,
    ) -> None:
        """Register this incarnation of the broker, fenced. Repeat it for timeout_ms if another one has this id, which
        may be this broker before a crash, and if no controller answers.

        previous_epoch is the epoch before a clean shutdown, -1 after an unclean one.
        Errors  KafkaError
        """
        self._registration = BrokerRegistrationRequest(
            broker_id=self.broker_id,
            cluster_id=self._cluster_id,
            incarnation_id=incarnation_id,
            listeners=list(endpoints),
            features=feature_ranges(self.features),
            rack=rack,
            log_dirs=list(log_dirs),
            previous_broker_epoch=previous_epoch,
        )
        deadline_ms, delays = self._env.now_ms() + timeout_ms, BackOff(100)
        while True:
            try:
                answer = await self._controller.ask(self._registration, BrokerRegistrationResponse)
                break
            except KafkaError as error:
                if error.code in _UNUSABLE or self._env.now_ms() >= deadline_ms:
                    raise self._not_registered(error) from error
                self._log_retry("cannot register with the controller; will retry", error)
            await self._env.sleep_ms(delays.next_ms(MAX_DELAY_MS))
        self.epoch = answer.broker_epoch

    def _not_registered(self, error: KafkaError) -> KafkaError:
        if error.code == ErrorCode.DUPLICATE_BROKER_REGISTRATION:
            text = f"another running broker has node.id={self.broker_id}: give each broker of a cluster its own node.id"
        elif error.code == ErrorCode.INCONSISTENT_CLUSTER_ID:
            text = (
                f"the controllers belong to another cluster than the data directory ({self._cluster_id}): correct the "
                "controllers' addresses, or start with an empty data directory"
            )
        else:
            text = f"the controller refuses to register this broker: {error}"
        return KafkaError(error.code, text)

    async def run(self, *, interval_ms: int) -> None:
        """Send a heartbeat each interval, forever.

        Errors  DUPLICATE_BROKER_REGISTRATION if another process has registered with this broker's id
        """
        delays = BackOff(100)
        while True:
            try:
                await self._heartbeat()
                delays.reset()
                delay_ms = interval_ms
            except KafkaError as error:
                if error.code == ErrorCode.DUPLICATE_BROKER_REGISTRATION:
                    raise
                self._log_retry("a heartbeat failed; will retry", error)
                delay_ms = delays.next_ms(interval_ms)
            with trio.move_on_after(delay_ms / 1000):
                await self._is_awaited.wait()
            self._is_awaited = trio.Event()

    async def catch_up(self) -> None:
        """Wait until this broker has replayed its own registration, as the controller sees it."""
        delays = BackOff(10)
        while not (await self._patient_heartbeat()).is_caught_up:
            await self._env.sleep_ms(delays.next_ms(MAX_DELAY_MS))

    async def unfence(self) -> None:
        """Become the leader of the partitions of this broker that have no leader. Returns when this broker knows it."""
        self._wants_fence = False
        delays = BackOff(10)
        while (await self._patient_heartbeat()).is_fenced or self._metadata.image.brokers[self.broker_id].fenced:
            await self._env.sleep_ms(delays.next_ms(MAX_DELAY_MS))

    async def shut_down(self) -> None:
        """Hand over the partitions of this broker to others, or leave them without a leader; then be fenced."""
        self._wants_shut_down = True
        delays, why = BackOff(20), "it does not answer"
        with trio.move_on_after(SHUTDOWN_PATIENCE_MS / 1000) as patience:
            while True:
                try:
                    answer = await self._heartbeat()
                except KafkaError as error:
                    if self._is_own_full_disk(error):
                        raise
                    why = str(error)
                else:
                    if answer.should_shut_down:
                        return
                    patience.deadline = trio.current_time() + SHUTDOWN_PATIENCE_MS / 1000
                await self._env.sleep_ms(delays.next_ms(MAX_DELAY_MS))
        logger.warning("stopping without the controller, which fences this broker later", why=why)

    async def _patient_heartbeat(self) -> BrokerHeartbeatResponse:
        """A heartbeat that is answered. Errors: KafkaError that no repetition cures."""
        delays = BackOff(100)
        while True:
            try:
                return await self._heartbeat()
            except KafkaError as error:
                if error.code in _FINAL or self._is_own_full_disk(error):
                    raise
                self._log_retry("a heartbeat failed; will retry", error)
            await self._env.sleep_ms(delays.next_ms(MAX_DELAY_MS))

    def _log_retry(self, event: str, error: KafkaError) -> None:
        """Log an error at once if its code is new, and then once a minute as long as it lasts."""
        left_out = self._log_limit.admit((event, error.code), now_ms=self._env.now_ms())
        if left_out is not None:
            logger.warning(event, code=error.code.name, why=error.message, left_out=left_out)

    def _is_own_full_disk(self, error: KafkaError) -> bool:
        return self._shares_disk and error.code == ErrorCode.KAFKA_STORAGE_ERROR

    async def _heartbeat(self) -> BrokerHeartbeatResponse:
        request = BrokerHeartbeatRequest(
            broker_id=self.broker_id,
            broker_epoch=self.epoch,
            current_metadata_offset=self._metadata.image.offset,
            want_fence=self._wants_fence,
            want_shut_down=self._wants_shut_down,
        )
        try:
            answer = await self._controller.ask(request, BrokerHeartbeatResponse)
        except KafkaError as error:
            if error.code == ErrorCode.STALE_BROKER_EPOCH and self.epoch == request.broker_epoch:
                await self._register_again()
            raise
        return answer

    async def _register_again(self) -> None:
        """Register again if the broker was unregistered (kafka-cluster.sh unregister).

        Errors  DUPLICATE_BROKER_REGISTRATION if another process has this id now
        """
        assert self._registration is not None, "heartbeats follow a registration"
        known = self._metadata.image.brokers.get(self.broker_id)
        if known is not None and known.epoch > self.epoch and known.incarnation_id != self._registration.incarnation_id:
            raise KafkaError(
                ErrorCode.DUPLICATE_BROKER_REGISTRATION,
                f"another process has registered as broker {self.broker_id}: give each broker its own node.id",
            )
        if known is None:
            self.epoch = (await self._controller.ask(self._registration, BrokerRegistrationResponse)).broker_epoch
            logger.warning("registered again, because the broker was unregistered", epoch=self.epoch)
