"""What the pages need of the node, and of the groups that it coordinates, as Protocols."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kbroker.broker import Broker
from kbroker.config import Settings
from kbroker.runtime.metrics import Metrics
from kbroker.runtime.net_ports import Env
from kbroker.server.tcp import Server


@dataclass(frozen=True, slots=True)
class MemberView:
    """One member of a group, as its coordinator knows it."""

    member_id: str
    client_id: str
    client_host: str
    group_instance_id: str | None = None


@dataclass(frozen=True, slots=True)
class GroupView:
    """One group now.

    Shape  offsets maps (topic, partition) to the committed offset
    Units  offsets count records
    """

    group_id: str
    state: str
    protocol_type: str = ""
    protocol: str = ""
    generation_id: int = -1
    members: Sequence[MemberView] = ()
    offsets: Mapping[tuple[str, int], int] = field(default_factory=dict)


class Groups(Protocol):
    """The groups that this node coordinates."""

    @property
    def loading(self) -> int:
        """How many partitions of the offsets topic are being read in; their groups are not there yet."""
        ...

    def views(self) -> Iterable[GroupView]:
        """Every group, one by one; groups may come and go meanwhile."""
        ...


class Observed(Protocol):
    """A node, from the moment at which its addresses are bound.

    Shape  broker, server and groups are None until they are there
    Note   is_serving: connections are accepted, or have been
    """

    @property
    def env(self) -> Env: ...

    @property
    def settings(self) -> Settings: ...

    @property
    def metrics(self) -> Metrics: ...

    @property
    def broker(self) -> Broker | None: ...

    @property
    def server(self) -> Server | None: ...

    @property
    def groups(self) -> Groups | None: ...

    @property
    def is_serving(self) -> bool: ...

    @property
    def is_stopping(self) -> bool: ...
