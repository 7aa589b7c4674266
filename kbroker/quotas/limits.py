"""Which limit applies to a user and a client id, or to an address.

The most specific entity that has the quota counts, in this order:

    user and client id; user and default client id; user;
    default user and client id; default user and default client id; default user;
    client id; default client id

What is measured against a limit is shared by all clients with the same tag: the user and the client id if the entity
has both, or only one of them. So a limit of a user is the sum of all of the user's clients, and a default applies to
each user or client by itself. A client without a client id has only the limits of users, as in Kafka.

Source: ClientQuotaManager of Apache Kafka 4.3.1; KIP-55, KIP-612.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from ipaddress import ip_address
from itertools import groupby
from typing import Final

from kbroker.metadata.image import QuotaEntity

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"

PRODUCER_BYTE_RATE: Final = "producer_byte_rate"
CONSUMER_BYTE_RATE: Final = "consumer_byte_rate"
REQUEST_PERCENTAGE: Final = "request_percentage"
CONTROLLER_MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_CREATION_RATE: Final = "connection_creation_rate"

Quotas = Mapping[QuotaEntity, Mapping[str, float]]
"""As in the metadata image."""
Tag = tuple[str, str]
"""The user and the client id whose traffic is measured together; "" stands for all."""

MAX_TAG_LENGTH: Final = 256
"""Client ids are measured by their first characters, so that long ones do not use up memory."""

_LEVELS: Final[tuple[Callable[[str, str], QuotaEntity], ...]] = (
    lambda user, client_id: ((CLIENT_ID, client_id), (USER, user)),
    lambda user, _client_id: ((CLIENT_ID, None), (USER, user)),
    lambda user, _client_id: ((USER, user),),
    lambda _user, client_id: ((CLIENT_ID, client_id), (USER, None)),
    lambda _user, _client_id: ((CLIENT_ID, None), (USER, None)),
    lambda _user, _client_id: ((USER, None),),
    lambda _user, client_id: ((CLIENT_ID, client_id),),
    lambda _user, _client_id: ((CLIENT_ID, None),),
)
_LEVEL_OF: Final = {
    tuple((kind, name is not None) for kind, name in entity_of("", "")): level
    for level, entity_of in enumerate(_LEVELS)
}
_NONE: Final[Mapping[str, float]] = {}
_OF_USERS: Final = (2, 5)
_OF_CLIENT_IDS: Final = (6, 7)


class QuotaLimits:
    """The limits of all entities.

    Cost  `of` looks up each kind of entity that has the quota, at most 8; an update looks at every entity, and works on
          those that have changed
    """

    def __init__(self) -> None:
        self._quotas: Quotas = {}
        self._counts: Counter[tuple[str, int]] = Counter()  # entities by quota and kind
        self._levels: dict[str, tuple[int, ...]] = {}
        self._by_address: dict[str, float] = {}
        self._default_of_addresses: float | None = None

    def limits(self, key: str) -> bool:
        """Whether any user or client id has this quota."""
        return key in self._levels

    @property
    def limits_addresses(self) -> bool:
        """Whether any address has a quota."""
        return self._default_of_addresses is not None or bool(self._by_address)

    def update(self, quotas: Quotas) -> None:
        """Use the quotas of a newer image."""
        for _ in self.update_in_steps(quotas):
            pass

    def update_in_steps(self, quotas: Quotas) -> Iterator[QuotaEntity | None]:
        """As `update`, in small steps, one for each entity: yields those that have changed, and None for the others."""
        before, self._quotas = self._quotas, quotas
        if before is quotas:
            return
        for entity, old in before.items():
            is_gone = entity not in quotas
            if is_gone:
                self._change(entity, old, {})
            yield entity if is_gone else None
        for entity, new in quotas.items():
            old = before.get(entity, _NONE)
            if old is not new:
                self._change(entity, old, new)
            yield None if old is new else entity
        used = sorted(pair for pair, count in self._counts.items() if count > 0)
        self._counts = Counter({pair: self._counts[pair] for pair in used})
        self._levels = {key: tuple(level for _, level in pairs) for key, pairs in groupby(used, lambda pair: pair[0])}

    def _change(self, entity: QuotaEntity, old: Mapping[str, float], new: Mapping[str, float]) -> None:
        level = _LEVEL_OF.get(tuple((kind, name is not None) for kind, name in entity))
        if level is None:
            self._set_address(entity, new.get(CONNECTION_CREATION_RATE))
            return
        for key in old:
            self._counts[key, level] -= 1
        for key in new:
            self._counts[key, level] += 1

    def _set_address(self, entity: QuotaEntity, limit: float | None) -> None:
        """Entities of unknown kinds and names that are no addresses have no effect."""
        if len(entity) != 1 or entity[0][0] != IP:
            return
        name = entity[0][1]
        address = None if name is None else canonical_address(name)
        if name is None:
            self._default_of_addresses = limit
        elif address is not None and limit is None:
            self._by_address.pop(address, None)
        elif address is not None and limit is not None:
            self._by_address[address] = limit

    def of(self, key: str, user: str, client_id: str) -> tuple[Tag, float] | None:
        """The tag and the limit of a client; None if it has none."""
        for level in self._levels.get(key, ()):
            if not client_id and level not in _OF_USERS:
                continue
            values = self._quotas.get(_LEVELS[level](user, client_id))
            if values is not None and (limit := values.get(key)) is not None:
                tag_user = "" if level in _OF_CLIENT_IDS else user
                return (tag_user, "" if level in _OF_USERS else client_id[:MAX_TAG_LENGTH]), limit
        return None

    def names_address(self, address: str) -> bool:
        """Whether an address in its canonical spelling has a limit of its own."""
        return address in self._by_address

    def of_address(self, address: str) -> float | None:
        """The limit of an address in its canonical spelling; None if it has none."""
        return self._by_address.get(address, self._default_of_addresses)


def canonical_address(text: str) -> str | None:
    """The one spelling of an IP address; None if the text is none. No name but localhost is resolved."""
    if text == "localhost":
        return "127.0.0.1"
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return str(mapped or address)
