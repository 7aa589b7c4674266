"""Answers DescribeClientQuotas from the metadata image.

A filter names the types of an entity and, for each, one name, the default, or any. Without `strict`, an entity may have
types that the filter does not name.

Source: ClientQuotasImage of Apache Kafka 4.3.1; KIP-546.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kbroker.metadata.image import QuotaEntity
from kbroker.quotas.limits import CLIENT_ID, IP, USER
from wire.errors import ErrorCode, KafkaError
from wire.messages.describe_client_quotas import ComponentData, EntityData, EntryData, ValueData

EXACT, DEFAULT, ANY = 0, 1, 2
_NAMES: Final = ("EXACT", "DEFAULT", "SPECIFIED")


class Filter:
    """What a request wants. Errors: INVALID_REQUEST, UNSUPPORTED_VERSION for a type that does not exist."""

    def __init__(self, components: Sequence[ComponentData], *, strict: bool) -> None:
        self._wanted: dict[str, tuple[int, str | None]] = {}
        for component in components:
            kind = component.entity_type
            _check(component, self._wanted)
            self._wanted[kind] = component.match_type, component.match
        self._strict = strict
        if IP in self._wanted and len(self._wanted) > 1:
            raise _invalid(
                "Invalid entity filter component combination. IP filter component should not be used with user or "
                "clientId filter component."
            )

    def admits(self, entity: QuotaEntity) -> bool:
        """Whether the entity is wanted."""
        parts = dict(entity)
        if self._strict and len(parts) != len(self._wanted):
            return False
        return all(
            kind in parts and (match_type == ANY or parts[kind] == name)
            for kind, (match_type, name) in self._wanted.items()
        )


def _check(component: ComponentData, known: Mapping[str, object]) -> None:
    kind = component.entity_type
    if not kind:
        raise _invalid("Invalid empty entity type.")
    if kind in known:
        raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
    if kind not in (USER, CLIENT_ID, IP):
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
    if component.match_type not in (EXACT, DEFAULT, ANY):
        raise _invalid(f"Unknown match type {component.match_type}")
    name = f"MATCH_TYPE_{_NAMES[component.match_type]}"
    if component.match_type == EXACT and component.match is None:
        raise _invalid(f"Request specified {name}, but set match string to null.")
    if component.match_type != EXACT and component.match is not None:
        raise _invalid(f"Request specified {name}, but also specified a match string.")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def entry(entity: QuotaEntity, values: Mapping[str, float]) -> EntryData:
    """One entity of an answer."""
    return EntryData(
        entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        values=[ValueData(key=key, value=value) for key, value in values.items()],
    )
