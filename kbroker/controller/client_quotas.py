"""Decisions for AlterClientQuotas, and the quota of changes to topics that CreateTopics and others respect.

The quotas of one entity are changed all together or not at all; the entities of a request are independent. As in Kafka,
an entity that is named twice is changed as its first entry says and then reported as a duplicate. An entity of
type ip must be an address: a decision resolves no host names.

Source: Kafka's ClientQuotaControlManager and ControllerMutationQuotaManager; KIP-546, KIP-599, KIP-612.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kbroker.controller.context import Context, TooManyRecords, error_text
from kbroker.controller.decisions import decides
from kbroker.metadata.image import QuotaEntity
from kbroker.quotas.limits import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    canonical_address,
)
from kbroker.runtime.outcome import Outcome
from wire.errors import ErrorCode, KafkaError
from wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntryData,
)
from wire.messages.describe_client_quotas import EntityData
from wire.stored import metadata as stored

_OF_CLIENTS: Final = {
    PRODUCER_BYTE_RATE: "LONG",
    CONSUMER_BYTE_RATE: "LONG",
    REQUEST_PERCENTAGE: "DOUBLE",
    CONTROLLER_MUTATION_RATE: "DOUBLE",
}
_OF_ADDRESSES: Final = {CONNECTION_CREATION_RATE: "INT"}
_HIGHEST: Final = {"INT": 2.0**31 - 1, "LONG": 2.0**63}
_ROUNDING: Final = 1e-6


@decides(AlterClientQuotasRequest, changes=True, may_be_long=True)
def alter_client_quotas(context: Context, request: AlterClientQuotasRequest) -> Outcome[AlterClientQuotasResponse]:
    """Decide the quotas of each entity.

    Per entity: INVALID_REQUEST (unknown or empty type, name, combination, quota or value; duplicate entity or quota).
    POLICY_VIOLATION for each if the request needs too many records.
    """
    errors: dict[QuotaEntity, KafkaError | None] = {}
    records: list[stored.ClientQuotaRecord] = []
    try:
        for entry in request.entries:
            entity = tuple(sorted({part.entity_type: part.entity_name for part in entry.entity}.items(), key=_kind))
            if entity in errors or len({op.key for op in entry.ops}) != len(entry.ops):
                text = f"Ignoring duplicate entity {_shown(entity)}"
                errors[entity] = KafkaError(ErrorCode.INVALID_REQUEST, text)
                continue
            try:
                errors[entity] = None
                decided = _records(context, entity, entry)
            except KafkaError as error:
                errors[entity] = error
            else:
                context.require_room(records, len(decided))
                records += decided
    except TooManyRecords as error:
        errors = {
            tuple((part.entity_type, part.entity_name) for part in entry.entity): error for entry in request.entries
        }
        records = []
    answers = [
        AlterClientQuotasResponseEntryData(
            error_code=ErrorCode.NONE if failed is None else failed.code,
            error_message=None if failed is None else error_text(failed),
            entity=[EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
        )
        for entity, failed in errors.items()
    ]
    return Outcome([] if request.validate_only else records, AlterClientQuotasResponse(entries=answers))


def _kind(part: tuple[str, str | None]) -> str:
    return part[0]


def _shown(entity: QuotaEntity) -> str:
    parts = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in entity)
    return f"ClientQuotaEntity(entries={{{parts}}})"


def _records(
    context: Context, entity: QuotaEntity, entry: AlterClientQuotasRequestEntryData
) -> list[stored.ClientQuotaRecord]:
    """The records for one entity. Errors: INVALID_REQUEST."""
    kinds = _quotas_of(entity)
    current: Mapping[str, float] = context.image.client_quotas.get(entity, {})
    records = []
    for op in entry.ops:
        value = None if op.remove else op.value
        if value is not None:
            _check_value(kinds, op.key, value)
        if current.get(op.key) != value:
            parts = [stored.EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
            records.append(stored.ClientQuotaRecord(entity=parts, key=op.key, value=value or 0.0, remove=value is None))
    return records


def _quotas_of(entity: QuotaEntity) -> Mapping[str, str]:
    """The quotas that an entity can have, with the types of their values. Errors: INVALID_REQUEST."""
    if not entity:
        raise _invalid("Invalid empty client quota entity")
    names = dict(entity)
    for kind, name in entity:
        if kind not in (USER, CLIENT_ID, IP):
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
    if IP not in names:
        return _OF_CLIENTS
    if len(names) > 1:
        raise _invalid("Invalid quota entity combination, IP entity should not be combined with User or ClientId")
    address = names[IP]
    if address is not None and canonical_address(address) is None:
        raise _invalid(f"{address} is not a valid IP or resolvable host.")
    return _OF_ADDRESSES


def _check_value(kinds: Mapping[str, str], key: str, value: float) -> None:
    kind = kinds.get(key)
    if kind is None:
        raise _invalid(f"Invalid configuration key {key}")
    if not value > 0:
        raise _invalid(f"Quota {key} must be greater than 0")
    if kind in _HIGHEST:
        if value > _HIGHEST[kind]:
            raise _invalid(f"Proposed value for {key} is too large for {'an' if kind == 'INT' else 'a'} {kind}.")
        if value % 1.0 > _ROUNDING:
            raise _invalid(f"{key} cannot be a fractional value.")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)
