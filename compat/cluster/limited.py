"""Clients above their quotas in a secured cluster: quotas of a user, and of a user with a client id (W13).

A bound on a rate holds however slow the machine is: in t seconds a client moves at most its quota of t seconds and of
all windows, and one request more. That it was throttled at all is seen in the answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from compat.cluster.secured import SecuredCluster
from compat.oracle.raw import RawConnection
from compat.oracle.schema import Message
from compat.oracle.test_quotas import (
    FETCHED,
    MUTATIONS,
    PRODUCED,
    THROTTLING_QUOTA_EXCEEDED,
    TIME,
    alteration,
    producing,
)
from compat.waiting import until
from kbroker.security.authorizing import Operation, ResourceType

USER, BUSY_USER, FREE_USER = "limited", "limited-busy", "limited-not"
PACED, OTHER = "paced", "other"
"""Client ids of the user: one with quotas of its own, and one that has those of the user."""
USERS: Final = (USER, BUSY_USER, FREE_USER)
TOPIC: Final = "limited"
CONFIG: Final = {"retention.ms": "-1"}
"""The records of these clients are old."""
LEADER: Final = 2
WINDOWS: Final = 2
SETTINGS: Final = {"quota.window.num": str(WINDOWS)}
RATES: Final = {OTHER: 200_000, PACED: 100_000}
"""The quotas of the user and of the pair, in bytes per second."""
ENTITY: Final = (("user", USER),)
PAIR: Final = (*ENTITY, ("client-id", PACED))
SECONDS: Final = 4
"""How much a client moves, as a multiple of its quota of a second."""
MUTATIONS_PER_S: Final = 0.1
SOON_S: Final = 30.0


def check_that_quotas_limit(cluster: SecuredCluster) -> None:
    """Set quotas through one broker, and exceed them at another one. The users and the topic exist."""
    cluster.allow(
        [
            (user, operation, ResourceType.TOPIC, TOPIC)
            for user in USERS
            for operation in (Operation.READ, Operation.WRITE, Operation.CREATE)
        ],
        through=1,
    )
    for user in USERS:
        cluster.await_view(user, TOPIC, 0)
    limits = (MUTATIONS, MUTATIONS_PER_S), (TIME, 1000.0)
    quotas = alteration(
        (ENTITY, ((PRODUCED, RATES[OTHER]), (FETCHED, RATES[OTHER]), *limits)),
        (PAIR, ((PRODUCED, RATES[PACED]), (FETCHED, RATES[PACED]), *limits)),
        ((("user", BUSY_USER),), ((TIME, 1000.0),)),
        ((("user", BUSY_USER), ("client-id", PACED)), ((TIME, 0.2),)),
    )
    with cluster.connect(1) as connection:
        answer = connection.call("AlterClientQuotas", 1, quotas)
    assert [entry["ErrorCode"] for entry in answer["Entries"]] == [0, 0, 0, 0], answer
    until(lambda: _known_quotas(cluster) == 4, each_s=0.05, patience_s=60)
    with ThreadPoolExecutor() as threads:
        for ended in [
            threads.submit(act, cluster, client_id)
            for act in (_produces_at_its_rate, _fetches_at_its_rate, _creates_until_refused)
            for client_id in RATES
        ]:
            ended.result()
    _is_muted_for_its_requests(cluster)


def _known_quotas(cluster: SecuredCluster) -> int:
    with cluster.connect(LEADER) as connection:
        return len(connection.call("DescribeClientQuotas", 1, {"Components": [], "Strict": False})["Entries"])


def _at_most(cluster: SecuredCluster, client_id: str, act: Callable[[RawConnection], tuple[int, Message]]) -> None:
    """Repeat an action, which returns how many bytes it has moved and the answer, and check the rate."""
    rate, moved, throttled, largest = RATES[client_id], 0, 0, 0
    with cluster.connect_as(USER, LEADER) as connection:
        connection.timeout_s = 60
        began = time.monotonic()
        while moved < SECONDS * rate:
            size, answer = act(connection)
            throttled += answer["ThrottleTimeMs"] > 0
            moved, largest = moved + size, max(largest, size)
            took_s = time.monotonic() - began
            assert moved <= rate * (took_s + WINDOWS) + largest, (client_id, moved, took_s)
    assert throttled, client_id


def _produces_at_its_rate(cluster: SecuredCluster, client_id: str) -> None:
    size = 50_000

    def produce(connection: RawConnection) -> tuple[int, Message]:
        answer = connection.call("Produce", 9, producing(TOPIC, size), client_id=client_id)
        assert answer["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == 0, answer
        return size, answer

    with cluster.connect_as(FREE_USER, LEADER) as free:
        # Another user with the same client id has no quota.
        assert [produce_as(free, 10 * size, client_id)["ThrottleTimeMs"] for _ in range(4)] == [0] * 4
        _at_most(cluster, client_id, produce)
        assert produce_as(free, size, client_id)["ThrottleTimeMs"] == 0


def produce_as(connection: RawConnection, size: int, client_id: str) -> Message:
    """The answer to a Produce that is accepted."""
    answer = connection.call("Produce", 9, producing(TOPIC, size), client_id=client_id)
    assert answer["Responses"][0]["PartitionResponses"][0]["ErrorCode"] == 0, answer
    return answer


def _fetches_at_its_rate(cluster: SecuredCluster, client_id: str) -> None:
    with cluster.connect_as(FREE_USER, LEADER) as free:
        for _ in range(2):
            produce_as(free, 50_000, client_id)
    partition = {"Partition": 0, "CurrentLeaderEpoch": -1, "FetchOffset": 0, "PartitionMaxBytes": 60_000}
    message = {
        "ReplicaId": -1, "MaxWaitMs": 0, "MinBytes": 1, "MaxBytes": 60_000, "SessionEpoch": -1,
        "Topics": [{"Topic": TOPIC, "Partitions": [partition]}],
    }  # fmt: skip

    def fetch(connection: RawConnection) -> tuple[int, Message]:
        answer = connection.call("Fetch", 11, message, client_id=client_id)
        parts = [part for topic in answer["Responses"] for part in topic["Partitions"]]
        assert not any(part["ErrorCode"] for part in parts), parts
        return sum(len(part["Records"] or b"") for part in parts), answer

    _at_most(cluster, client_id, fetch)


def _creates_until_refused(cluster: SecuredCluster, client_id: str) -> None:
    """The bucket of mutations goes below zero for a minute: five partitions, at one in ten seconds."""

    def create(connection: RawConnection, name: str) -> tuple[int, int]:
        new = {"Name": f"{TOPIC}-{client_id}-{name}", "NumPartitions": 5, "ReplicationFactor": 1}
        message = {"Topics": [new], "timeoutMs": 30_000}
        answer = connection.call("CreateTopics", 7, message, client_id=client_id)
        return answer["Topics"][0]["ErrorCode"], answer["ThrottleTimeMs"]

    with cluster.connect_as(USER, LEADER) as connection, cluster.connect_as(FREE_USER, LEADER) as free:
        free.timeout_s = connection.timeout_s = 60
        assert create(connection, "first") == (0, 0)
        code, throttle_ms = create(connection, "second")
        assert code == THROTTLING_QUOTA_EXCEEDED
        assert throttle_ms > 0
        assert [create(free, name) for name in ("third", "fourth")] == [(0, 0)] * 2


def _is_muted_for_its_requests(cluster: SecuredCluster) -> None:
    """A user with a client id sends small requests until it is muted; its other clients are not."""
    asked = {"Topics": [{"Name": TOPIC}], "AllowAutoTopicCreation": False}
    with cluster.connect_as(BUSY_USER, LEADER) as busy, cluster.connect_as(BUSY_USER, LEADER) as other:
        deadline, throttle_ms, began = time.monotonic() + SOON_S, 0, 0.0
        while not throttle_ms:
            assert time.monotonic() < deadline, "it was never muted"
            began = time.monotonic()
            throttle_ms = busy.call("Metadata", 5, asked, client_id=PACED)["ThrottleTimeMs"]
            assert other.call("Metadata", 5, asked, client_id=OTHER)["ThrottleTimeMs"] == 0
        busy.call("Metadata", 5, asked, client_id=PACED)
        assert time.monotonic() - began >= throttle_ms / 1000 - 0.005  # the broker rounds to milliseconds
