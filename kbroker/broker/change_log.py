"""One log line for each thing that a client creates, changes or deletes, with who asked.

The lines come from a request and its answer, so they name only what has really happened. Values of secret settings are
hidden. Each principal has LINES lines in INTERVAL_MS, because a client could fill the disk with them, or hide what
another one does; a line says when they are used up, and a later one how many are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from kbroker.config.catalogue import is_secret
from kbroker.config.values import HIDDEN
from kbroker.metadata.image import BROKER_LOGGER_RESOURCE, BROKER_RESOURCE, CLIENT_METRICS_RESOURCE, GROUP_RESOURCE
from kbroker.metadata.principal import Principal
from kbroker.runtime.event_log import get_logger
from kbroker.runtime.limits import RateLimitedLog
from kbroker.runtime.turns import Turns
from kbroker.security.acl_filters import number_name
from kbroker.security.authorizing import Operation, PatternType, Permission, ResourceType
from wire.messages.alter_client_quotas import AlterClientQuotasRequest
from wire.messages.alter_configs import AlterConfigsRequest
from wire.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from wire.messages.alter_user_scram_credentials import AlterUserScramCredentialsRequest
from wire.messages.create_acls import CreateAclsRequest
from wire.messages.create_partitions import CreatePartitionsRequest
from wire.messages.create_topics import CreateTopicsRequest
from wire.messages.delete_acls import DeleteAclsRequest
from wire.messages.delete_groups import DeleteGroupsRequest
from wire.messages.delete_records import DeleteRecordsRequest
from wire.messages.delete_topics import DeleteTopicsRequest
from wire.messages.elect_leaders import ElectLeadersRequest
from wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from wire.messages.offset_commit import OffsetCommitRequest
from wire.messages.offset_delete import OffsetDeleteRequest
from wire.messages.unregister_broker import UnregisterBrokerRequest
from wire.messages.update_features import UpdateFeaturesRequest

LINES: Final = 1_000
INTERVAL_MS: Final = 10_000
DEFAULT: Final = "(default)"
SHOWN_OFFSETS: Final = 200
"""More than fit in a line, which the log cuts."""
_OPERATIONS: Final = {0: "", 2: "appended ", 3: "removed "}
_DELETE: Final = 1
_RESOURCES: Final = {
    BROKER_RESOURCE: "broker", BROKER_LOGGER_RESOURCE: "logger of broker", CLIENT_METRICS_RESOURCE: "subscription",
    GROUP_RESOURCE: "group",
}  # fmt: skip

_MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}

Change = tuple[str, dict[str, object]]
"""The event of a line and its fields."""

logger = get_logger(__name__)


class ChangeLog:
    """Writes the lines of one broker."""

    def __init__(self, now_ms: Callable[[], int], turns: Turns) -> None:
        self._now_ms = now_ms
        self._turns = turns
        self._limit = RateLimitedLog(interval_ms=INTERVAL_MS, lines=LINES)

    async def write(self, request: Any, answer: Any, *, principal: Principal, client_id: str, peer: str) -> None:
        """Write what a request has changed."""
        for event, fields in changes_of(request, answer):
            if self._turns.due():
                await self._turns.next()
            self.note(event, principal=principal, client_id=client_id, peer=peer, **fields)

    def note(self, event: str, *, principal: Principal, client_id: str, peer: str, **fields: object) -> None:
        """Write one change."""
        left_out = self._limit.admit(principal, now_ms=self._now_ms())
        if left_out is None:
            if self._limit.begins_to_leave_out(principal):  # a line that nothing may follow
                text, seconds = "further changes are not logged now", INTERVAL_MS // 1000
                logger.warning(text, seconds=seconds, principal=principal, client_id=client_id, peer=peer)
            return
        if left_out:
            text = "changes were not logged, because there were too many"
            logger.warning(text, changes=left_out, principal=principal)
        logger.info(event, **fields, principal=principal, client_id=client_id, peer=peer)


def changes_of(request: Any, answer: Any) -> Iterator[Change]:
    """What a request has changed, according to its answer."""
    find = _CHANGES.get(type(request))
    if find is not None and not getattr(request, "validate_only", False) and not getattr(answer, "error_code", 0):
        yield from find(request, answer)


def _done(results: Iterable[Any]) -> list[Any]:
    return [result for result in results if not result.error_code]


def _created_topics(_request: CreateTopicsRequest, answer: Any) -> Iterator[Change]:
    for topic in _done(answer.topics):
        yield (
            "topic created",
            {"topic": topic.name, "partitions": topic.num_partitions, "replication_factor": topic.replication_factor},
        )


def _created_partitions(request: CreatePartitionsRequest, answer: Any) -> Iterator[Change]:
    counts = {topic.name: topic.count for topic in request.topics}
    for topic in _done(answer.results):
        yield "partitions added", {"topic": topic.name, "partitions": counts.get(topic.name)}


def _deleted_topics(_request: DeleteTopicsRequest, answer: Any) -> Iterator[Change]:
    for topic in _done(answer.responses):
        yield "topic deleted", {"topic": topic.name}


def _changed_settings(request: AlterConfigsRequest | IncrementalAlterConfigsRequest, answer: Any) -> Iterator[Change]:
    accepted = {(each.resource_type, each.resource_name) for each in _done(answer.responses)}
    replaces = isinstance(request, AlterConfigsRequest)
    for resource in request.resources:
        if (resource.resource_type, resource.resource_name) not in accepted:
            continue
        kind = _RESOURCES.get(resource.resource_type, "topic")
        whose: dict[str, object] = {kind.replace(" ", "_"): resource.resource_name or DEFAULT}
        if replaces:
            yield "settings replaced", {**whose, "settings": len(resource.configs)}
        for config in resource.configs:
            operation = getattr(config, "config_operation", 0)
            value = HIDDEN if resource.resource_type == BROKER_RESOURCE and is_secret(config.name) else config.value
            shown = DEFAULT if operation == _DELETE else f"{_OPERATIONS.get(operation, '')}{value}"
            yield "setting changed", {**whose, "name": config.name, "value": shown}


def _changed_quotas(request: AlterClientQuotasRequest, answer: Any) -> Iterator[Change]:
    accepted = {_shown(entry.entity) for entry in _done(answer.entries)}
    for entry in request.entries:
        if (entity := _shown(entry.entity)) in accepted:
            for op in entry.ops:
                yield "quota changed", {"entity": entity, "name": op.key, "value": None if op.remove else op.value}


def _changed_credentials(request: AlterUserScramCredentialsRequest, answer: Any) -> Iterator[Change]:
    accepted = {result.user for result in _done(answer.results)}
    for event, changes in (("credential deleted", request.deletions), ("credential set", request.upsertions)):
        for change in changes:
            if change.name in accepted:
                yield event, {"user": change.name, "mechanism": _MECHANISMS.get(change.mechanism)}


def _shown(entity: Iterable[Any]) -> str:
    names = {part.entity_type: DEFAULT if part.entity_name is None else part.entity_name for part in entity}
    return " ".join(f"{kind}={name}" for kind, name in sorted(names.items()))


def _reassigned(request: AlterPartitionReassignmentsRequest, answer: Any) -> Iterator[Change]:
    wanted = {
        (topic.name, part.partition_index): part.replicas for topic in request.topics for part in topic.partitions
    }
    for topic in answer.responses:
        for part in _done(topic.partitions):
            replicas = wanted.get((topic.name, part.partition_index))
            event = "reassignment cancelled" if replicas is None else "replicas reassigned"
            yield event, {"topic": topic.name, "partition": part.partition_index, "replicas": replicas}


def _changed_features(request: UpdateFeaturesRequest, _answer: Any) -> Iterator[Change]:
    for update in request.feature_updates:
        yield "feature level changed", {"feature": update.feature, "level": update.max_version_level}


def _deleted_groups(_request: DeleteGroupsRequest, answer: Any) -> Iterator[Change]:
    for result in _done(answer.results):
        yield "group deleted", {"group": result.group_id}


def _deleted_offsets(request: OffsetDeleteRequest, answer: Any) -> Iterator[Change]:
    for topic in answer.topics:
        partitions = [part.partition_index for part in _done(topic.partitions)]
        if partitions:
            yield "offsets deleted", {"group": request.group_id, "topic": topic.name, "partitions": partitions}


def _set_offsets(request: OffsetCommitRequest, answer: Any) -> Iterator[Change]:
    wanted = {
        (topic.name, one.partition_index): one.committed_offset for topic in request.topics for one in topic.partitions
    }
    for topic in answer.topics:
        if indexes := [part.partition_index for part in _done(topic.partitions)]:
            offsets = ",".join(f"{index}:{wanted[topic.name, index]}" for index in indexes[:SHOWN_OFFSETS])
            yield "offsets set", {"group": request.group_id, "topic": topic.name, "offsets": offsets}


def _deleted_records(_request: DeleteRecordsRequest, answer: Any) -> Iterator[Change]:
    for topic in answer.topics:
        for part in _done(topic.partitions):
            yield (
                "records deleted",
                {"topic": topic.name, "partition": part.partition_index, "below_offset": part.low_watermark},
            )


def _created_acls(request: CreateAclsRequest, answer: Any) -> Iterator[Change]:
    for acl, result in zip(request.creations, answer.results, strict=True):
        if not result.error_code:
            yield "ACL created", _shown_acl(acl, acl.resource_pattern_type)


def _deleted_acls(_request: DeleteAclsRequest, answer: Any) -> Iterator[Change]:
    for result in _done(answer.filter_results):
        for acl in _done(result.matching_acls):
            yield "ACL deleted", _shown_acl(acl, acl.pattern_type)


def _shown_acl(acl: Any, pattern_type: int) -> dict[str, object]:
    return {
        "permission": number_name(Permission, acl.permission_type),
        "whom": acl.principal,
        "from_host": acl.host,
        "operation": number_name(Operation, acl.operation),
        "resource": f"{number_name(ResourceType, acl.resource_type)}:{acl.resource_name}",
        "pattern": number_name(PatternType, pattern_type),
    }


def _elected(request: ElectLeadersRequest, answer: Any) -> Iterator[Change]:
    election = "unclean" if request.election_type else "preferred"
    for topic in answer.replica_election_results:
        for part in _done(topic.partition_result):
            yield "leader elected", {"topic": topic.topic, "partition": part.partition_id, "election": election}


def _unregistered(request: UnregisterBrokerRequest, _answer: Any) -> Iterator[Change]:
    yield "broker unregistered", {"broker": request.broker_id}


_CHANGES: Final[dict[type, Callable[[Any, Any], Iterator[Change]]]] = {
    CreateAclsRequest: _created_acls,
    DeleteAclsRequest: _deleted_acls,
    CreateTopicsRequest: _created_topics,
    CreatePartitionsRequest: _created_partitions,
    AlterClientQuotasRequest: _changed_quotas,
    AlterUserScramCredentialsRequest: _changed_credentials,
    DeleteTopicsRequest: _deleted_topics,
    AlterConfigsRequest: _changed_settings,
    IncrementalAlterConfigsRequest: _changed_settings,
    AlterPartitionReassignmentsRequest: _reassigned,
    UpdateFeaturesRequest: _changed_features,
    DeleteGroupsRequest: _deleted_groups,
    OffsetCommitRequest: _set_offsets,
    OffsetDeleteRequest: _deleted_offsets,
    DeleteRecordsRequest: _deleted_records,
    UnregisterBrokerRequest: _unregistered,
    ElectLeadersRequest: _elected,
}
