"""The broker that gets the card: what it advertises, where it is, and what the card made on it.

All topics are placed on one broker, the one with the lowest id, and all groups and transactional ids are chosen so that
it coordinates them. So a row speaks with one broker, and the answers of a cluster can be compared with those of a
single node.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from compat.brokers import address_of
from compat.card.codec import Message, api_keys, decode_response, encode_request, known_versions
from compat.card.connection import NONE, Connection, Deadline, Security
from compat.card.outcome import code_name
from compat.card.registry import NotOffered
from compat.oracle.raw import Reply, Silent
from wire.errors import ErrorCode, Malformed

SOFTWARE = {"ClientSoftwareName": "kbroker-card", "ClientSoftwareVersion": "1"}
GROUP, TRANSACTION = 0, 1
GROUP_RESOURCE, DELETE = 32, 1
ABSENT = "card-never-created"
"""A topic that does not exist; the card deletes it at the end, in case the broker has created it."""
CONTACT_S, PREPARE_S, ALIVE_S, CLEAN_S = 10.0, 60.0, 15.0, 60.0
NAMES_TRIED = 500
_LOADING = {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
_LEAVING = {"Stable", "PreparingRebalance", "CompletingRebalance"}


class BrokerGone(Exception):
    """No broker answers; the message says where and why."""


class Failed(Exception):
    """A row cannot go on because of what the broker did; the message says what."""


@dataclass(frozen=True)
class Topic:
    """A topic that the card made; the id is zero if the broker does not tell it."""

    name: str
    id: bytes


class Session:
    """What all rows share. Errors: BrokerGone from the constructor."""

    def __init__(self, bootstrap_servers: str, security: Security = NONE) -> None:
        self.security = security
        self.prefix = f"card-{secrets.token_hex(4)}-"
        self.topics = {ABSENT}
        self.groups: set[str] = set()
        self.configured_groups: dict[str, str] = {}  # the setting that each has
        self.shared: dict[object, Topic | Failed | NotOffered] = {}
        self.gates: dict[object, threading.Lock] = {}
        self.lock = threading.Lock()
        self._count = 0
        self.advertised: dict[int, range] = {}
        self.features: dict[str, int] = {}
        self.address = self._first_answering(bootstrap_servers)
        self._find_home()

    def _first_answering(self, bootstrap_servers: str) -> tuple[str, int]:
        """The first of the listed brokers that answers ApiVersions, with what it advertises."""
        failures = []
        for each in bootstrap_servers.split(","):
            try:
                address = address_of(each.strip())
                self._learn(address)
            except (OSError, Failed) as error:
                failures.append(f"{each}: {error}")
            else:
                return address
        raise BrokerGone("no broker answers at " + "; ".join(failures))

    def _learn(self, address: tuple[str, int]) -> None:
        deadline = Deadline.after(CONTACT_S)
        for version in (4, 3, 0):
            try:
                answer = exchange(address, deadline, "ApiVersions", version, SOFTWARE, security=self.security)
            except Failed:
                if version == 0 or deadline.is_over:
                    raise
                continue
            if answer["ErrorCode"] == ErrorCode.NONE:
                self.advertised = {
                    each["ApiKey"]: range(each["MinVersion"], each["MaxVersion"] + 1) for each in answer["ApiKeys"]
                }
                self.features = {
                    each["Name"]: each["MaxVersionLevel"] for each in answer.get("FinalizedFeatures") or []
                }
                return
        raise Failed(f"ApiVersions is answered with {code_name(answer['ErrorCode'])}")

    def _find_home(self) -> None:
        """Go to the broker with the lowest id."""
        try:
            version = self.newest("Metadata", 12)
            answer = self.exchange(Deadline.after(PREPARE_S), "Metadata", version, {"Topics": []})
        except (Failed, NotOffered) as error:
            raise BrokerGone(f"{self.place}: {error}") from None
        if not answer["Brokers"]:
            raise BrokerGone(f"{self.place}: Metadata lists no broker")
        home = min(answer["Brokers"], key=lambda each: each["NodeId"])
        self.node, self.brokers = home["NodeId"], len(answer["Brokers"])
        self.address = (home["Host"], home["Port"])
        try:
            self._learn(self.address)
        except (OSError, Failed) as error:
            raise BrokerGone(f"broker {self.node} advertises {self.place}, where it does not answer: {error}") from None

    @property
    def place(self) -> str:
        """`host:port` of the broker that the rows speak with."""
        return f"{self.address[0]}:{self.address[1]}"

    def is_alive(self) -> bool:
        """Whether the broker still answers ApiVersions."""
        try:
            self.exchange(Deadline.after(ALIVE_S), "ApiVersions", 0, {})
        except (OSError, Failed):
            return False
        return True

    def exchange(
        self, deadline: Deadline, api: str, version: int, message: Mapping[str, object], *, wait_s: float | None = None
    ) -> Message:
        """One request on a connection of its own. Errors: Failed, OSError."""
        return exchange(self.address, deadline, api, version, message, wait_s=wait_s, security=self.security)

    def newest(self, api: str, most: int = 32767) -> int:
        """The newest version, at most `most`, that the broker advertises and `wire` knows. Errors: NotOffered."""
        served = self.advertised.get(api_keys()[api])
        if served is None:
            raise NotOffered(f"the broker does not advertise {api}")
        common = [version for version in known_versions(api) if version in served and version <= most]
        if not common:
            raise NotOffered(f"the broker advertises {api} {shown(served)}, and this row needs {most} or older")
        return common[-1]

    def require(self, api: str, version: int) -> None:
        """Errors: NotOffered if the broker does not advertise this version."""
        served = self.advertised.get(api_keys()[api])
        if served is None:
            raise NotOffered(f"the broker does not advertise {api}")
        if version not in served:
            raise NotOffered(f"the broker advertises {api} {shown(served)}, and this row needs version {version}")

    def require_feature(self, name: str, level: int) -> None:
        """Errors: NotOffered if a feature of the cluster has a lower level."""
        found = self.features.get(name, 0)
        if found < level:
            raise NotOffered(f"{name} is {found} on this cluster, and this row needs {level}")

    def new_name(self, stem: str) -> str:
        """A name that begins with the card's prefix."""
        with self.lock:
            self._count += 1
            return f"{self.prefix}{stem}-{self._count}"

    def prepare(self) -> None:
        """Wait until groups and transactions have coordinators: the first request may create their topics."""
        deadline = Deadline.after(PREPARE_S)
        for kind in (GROUP, TRANSACTION):
            with contextlib.suppress(NotOffered, Failed, OSError):
                self.coordinated("prepare", kind, deadline)

    def coordinated(self, stem: str, kind: int, deadline: Deadline) -> str:
        """A new group or transactional id that this broker coordinates, as it does the same name with an "x" behind,
        which rows use for something unknown.
        """
        for _ in range(NAMES_TRIED):
            name = self.new_name(stem)
            if self._coordinates(name, kind, deadline) and self._coordinates(name + "x", kind, deadline):
                return name
        raise NotOffered(f"broker {self.node} coordinates none of {NAMES_TRIED} names")

    def _coordinates(self, name: str, kind: int, deadline: Deadline) -> bool:
        version, request = self.newest("FindCoordinator", 3), {"Key": name, "KeyType": kind}
        while True:
            answer = self.exchange(deadline, "FindCoordinator", version, request)
            if answer["ErrorCode"] == ErrorCode.NONE:
                if answer["NodeId"] != self.node:
                    return False
                if kind != GROUP or not self._is_loading(name, deadline):
                    return True
            elif answer["ErrorCode"] not in _LOADING:
                raise Failed(f"FindCoordinator is answered with {code_name(answer['ErrorCode'])}")
            pause(deadline, "no coordinator is available")

    def _is_loading(self, group: str, deadline: Deadline) -> bool:
        """Whether the coordinator of a new group still reads what it stores."""
        beat = {"GroupId": group, "GenerationId": 0, "MemberId": "not-a-member"}
        answer = self.exchange(deadline, "Heartbeat", self.newest("Heartbeat", 2), beat)
        return bool(answer["ErrorCode"] == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)

    def clean(self) -> list[str]:
        """Delete what the card made; returns what could not be deleted, and why."""
        deadline = Deadline.after(CLEAN_S)
        left: list[str] = []
        for name in sorted(self.groups):
            _attempt(left, f"group {name}", lambda name=name: self._delete_group(name, deadline))  # type: ignore[misc]
        if self.configured_groups:
            _attempt(left, "the settings of groups", lambda: self._reset_groups(deadline))
        _attempt(left, f"{len(self.topics)} topics named {self.prefix}*", lambda: self._delete_topics(deadline))
        return left

    def _reset_groups(self, deadline: Deadline) -> None:
        resources = [
            {
                "ResourceType": GROUP_RESOURCE,
                "ResourceName": name,
                "Configs": [{"Name": key, "ConfigOperation": DELETE, "Value": None}],
            }
            for name, key in self.configured_groups.items()
        ]
        version, request = self.newest("IncrementalAlterConfigs"), {"Resources": resources, "ValidateOnly": False}
        answer = self.exchange(deadline, "IncrementalAlterConfigs", version, request)
        if codes := {code_name(each["ErrorCode"]) for each in answer["Responses"]} - {"NONE"}:
            raise Failed(f"IncrementalAlterConfigs is answered with {', '.join(sorted(codes))}")

    def _delete_topics(self, deadline: Deadline) -> None:
        version = self.newest("DeleteTopics", 5)
        request = {"TopicNames": sorted(self.topics), "TimeoutMs": 30_000}
        answer = self.exchange(deadline, "DeleteTopics", version, request, wait_s=CLEAN_S)
        absent = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        codes = {code_name(each["ErrorCode"]) for each in answer["Responses"] if each["ErrorCode"] not in absent}
        if codes:
            raise Failed(f"DeleteTopics is answered with {', '.join(sorted(codes))}")

    def _delete_group(self, name: str, deadline: Deadline) -> None:
        described = self.exchange(deadline, "DescribeGroups", self.newest("DescribeGroups", 4), {"Groups": [name]})[
            "Groups"
        ][0]
        if described["GroupState"] in _LEAVING:
            for member in described["Members"]:
                request = {"GroupId": name, "MemberId": member["MemberId"]}
                self.exchange(deadline, "LeaveGroup", self.newest("LeaveGroup", 2), request)
        answer = self.exchange(deadline, "DeleteGroups", self.newest("DeleteGroups"), {"GroupsNames": [name]})
        code = answer["Results"][0]["ErrorCode"]
        if code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
            raise Failed(f"DeleteGroups is answered with {code_name(code)}")


def _attempt(left: list[str], what: str, work: Callable[[], None]) -> None:
    try:
        work()
    except (OSError, Failed, NotOffered) as error:
        left.append(f"{what}: {error}")


def shown(versions: range) -> str:
    """`3-13`."""
    return f"{versions.start}-{versions.stop - 1}"


def pause(deadline: Deadline, lacking: str, seconds: float = 0.01) -> None:
    """Wait a moment before the next attempt. Errors: Failed if the row's time is up."""
    if deadline.is_over:
        raise Failed(f"{lacking} within the row's time")
    time.sleep(seconds)


def exchange(
    address: tuple[str, int], deadline: Deadline, api: str, version: int, message: Mapping[str, object], *,
    wait_s: float | None = None, security: Security = NONE,
) -> Message:  # fmt: skip
    """One request on a connection of its own. Errors: Failed, OSError."""
    connection = Connection(address, deadline, security)
    try:
        connection.send(encode_request(api, version, dict(message)))
        return received(connection, api, version, wait_s=wait_s)
    finally:
        connection.close()


def received(
    connection: Connection, api: str, version: int, *, correlation_id: int = 1, wait_s: float | None = None
) -> Message:
    """The next answer of a connection, decoded. Errors: Failed."""
    got = connection.answer() if wait_s is None else connection.answer(timeout_s=wait_s)
    if isinstance(got, Reply):
        try:
            return decode_response(api, version, got.payload, correlation_id=correlation_id)
        except Malformed as error:
            raise Failed(f"the answer to {api} version {version} does not decode: {error}") from None
    if isinstance(got, Silent):
        raise Failed(f"{api} version {version} was not answered in time")
    raise Failed(f"the broker closed the connection instead of answering {api} version {version}")
